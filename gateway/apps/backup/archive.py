"""The archive of a data directory: each database as it is at one moment, every other file as it is found.

Databases are copied before the files: a record may lose its file meanwhile, and no file lacks its record.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import tarfile
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from gateway.cli.options import config_option, counted, end_with, examples, fail, is_there, json_option, load_or_exit
from gateway.sqlite_file import open_read_only

MAGIC = b"SQLite format 3\0"
OF_DATABASES = ("-wal", "-shm", "-journal")  # beside a database; its copy contains what they hold
LEFT_OUT = (".lock", ".part", ".new")  # a running gateway's, or not written to their end


@dataclass
class Contents:
    """What an archive has. `damaged`: name of a database → why it was copied as it lies there."""

    databases: list[str] = field(default_factory=list)
    files: int = 0
    damaged: dict[str, str] = field(default_factory=dict)


def write_archive(data: Path, file: Path) -> Contents:
    """Write everything in `data` into the archive `file`, which only its owner may read: whole, or not at all. Raises
    OSError, sqlite3.Error."""
    contents = Contents()
    unfinished = file.with_name(f"{file.name}.new")
    with TemporaryDirectory(prefix=".backup-", dir=file.parent) as scratch:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as raw:
                with tarfile.open(fileobj=raw, mode="w:gz", compresslevel=6) as archive:
                    _fill(archive, data, Path(scratch), contents)
                raw.flush()
                os.fsync(raw.fileno())
            os.replace(unfinished, file)
        finally:
            unfinished.unlink(missing_ok=True)
    return contents


def _fill(archive: tarfile.TarFile, data: Path, scratch: Path, contents: Contents) -> None:
    found = list(_files(data))
    for path in found:
        if _is_database(path):
            name = str(path.relative_to(data))
            copy = scratch / "copy.db"
            try:
                _copy_database(path, copy)
            except sqlite3.OperationalError:  # such as a full disk
                raise
            except sqlite3.DatabaseError as error:
                contents.damaged[name] = str(error)
                continue
            _add(archive, copy, name, path)
            copy.unlink()
            contents.databases.append(name)
    for path in found:
        name = str(path.relative_to(data))
        database = next((name.removesuffix(end) for end in OF_DATABASES if name.endswith(end)), name)
        if database in contents.databases:
            continue
        if _add(archive, path, name, path):
            contents.files += 1


def _files(data: Path) -> Iterator[Path]:
    """Regular files below `data`, each folder in the order of the names; links and what is no file are left out."""
    for folder, folders, names in os.walk(data):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if not name.endswith(LEFT_OUT) and stat.S_ISREG(path.lstat().st_mode):
                yield path


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _copy_database(path: Path, copy: Path) -> None:
    """What is committed at one moment, whoever writes meanwhile. Raises DatabaseError for a damaged one."""
    with (
        TemporaryDirectory(dir=copy.parent) as folder,
        closing(_source(path, Path(folder))) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
        (verdict,) = target.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        copy.unlink()
        raise sqlite3.DatabaseError(verdict)


def _source(path: Path, folder: Path) -> sqlite3.Connection:
    """The database, opened for reading. One that no gateway has open is read in a copy in `folder`: to play back the
    journal of a gateway that was killed, SQLite writes beside it, and as the wrong user where root makes the backup."""
    journals = [journal for end in OF_DATABASES if (journal := path.with_name(path.name + end)).exists()]
    if path.with_name(f"{path.name}-shm") in journals:
        with suppress(sqlite3.OperationalError):
            return open_read_only(path, immutable=False)
    for one in (path, *journals):
        if not one.name.endswith("-shm"):
            shutil.copyfile(one, folder / one.name)
    return sqlite3.connect(folder / path.name)


def _add(archive: tarfile.TarFile, path: Path, name: str, original: Path) -> bool:
    """Add the bytes at `path` under this name, with owner, mode and time of the original. False: it is gone."""
    try:
        with path.open("rb") as content:
            member = archive.gettarinfo(str(original), arcname=name)
            member.size = os.fstat(content.fileno()).st_size
            archive.addfile(member, content)
    except FileNotFoundError:
        return False
    return True


@examples(
    "gateway backup gateway.tar.gz",
    'gateway backup "/srv/backups/gateway-$(date +%F).tar.gz"',
)
@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@config_option
@json_option
def command(file: Path, config: Path, as_json: bool) -> None:
    """Write the directory `server.data` into FILE (tar, gzip), also while the gateway runs.

    How to restore it: docs/operating.md. FILE has prompts and answers, and only its owner may read it.

    Exit code 0: written; 1: nothing was written, or a database is damaged and was copied as it lies there; 2: wrong
    usage.
    """
    server = load_or_exit(config, as_json=as_json).snapshot.server
    data = Path(server.data)
    if not (is_there(data) and data.is_dir()):
        fail(f"there is no directory {data.absolute()} (`server.data`): run this where the gateway runs")
    if is_there(file):
        raise click.UsageError(f"'{file}' exists: name another file, or delete it")
    if data.resolve() in file.resolve().parents:
        raise click.UsageError(f"'{file}' is in `server.data` itself: name a file elsewhere")
    try:
        contents = write_archive(data, file)
    except (OSError, sqlite3.Error) as error:
        end_with(error, as_json=as_json)
    if as_json:
        told = {"ok": not contents.damaged, "file": str(file.absolute()), "bytes": file.stat().st_size}
        click.echo(json.dumps({**told, **vars(contents)}, indent=2))
    else:
        parts = ", ".join([*contents.databases, counted(contents.files, "file")])
        click.echo(f"{file}: {file.stat().st_size:,} bytes: {parts}")
        for name, why in contents.damaged.items():
            click.echo(f"{data / name} is damaged and was copied as it lies there: {why}", err=True)
        if server.shared:
            click.echo("Files and batches are in Redis (`server.shared`), and not in this file.", err=True)
    if contents.damaged:
        raise SystemExit(1)
