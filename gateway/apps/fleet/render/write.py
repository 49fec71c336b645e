"""The rendered files: where they are installed on a node, and how they are written below a directory, one folder per
node, each whole or not at all.

The directory keeps a record of what was written, so that a file that somebody has changed since is not lost."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MARK = "Rendered by gateway fleet render"
UNITS = "/etc/systemd/system"
SCRIPTS = "/usr/local/lib/spark"
COMPOSE = f"{SCRIPTS}/compose.yaml"
SUDOERS = "/etc/sudoers.d/spark"
INSTALLER = "/install.sh"  # installs the others
HOST_KEYS = "/host-keys.sh"  # asks the nodes for their host keys
NOT_INSTALLED = (INSTALLER, HOST_KEYS)
OWN_UNIT = f"{UNITS}/spark-gateway.service"  # the gateway's
GATEWAY = "_gateway"  # the folder for the gateway's own machine; no node can have this name


def unit_path(name: str) -> str:
    return f"{UNITS}/{name}.service"


def script_path(name: str) -> str:
    """The launch script: /usr/local/lib/spark/<backend>/launch.sh."""
    return f"{SCRIPTS}/{name.removeprefix('spark-')}/launch.sh"


def env_path(name: str) -> str:
    """The values of `${NAME}`, mode 0600. Written once, and from then on the operator's."""
    return f"/etc/spark/{name}.env"


@dataclass(frozen=True, slots=True)
class RenderedFile:
    """One file of a node. `path`: where it is installed there. `keep`: an existing one is never overwritten, because
    the values in it are the operator's."""

    node: str
    path: str
    text: str
    mode: int
    keep: bool = False

    @property
    def place(self) -> str:
        """Its path below the directory that `--out` names: the node's name, then the path on the node."""
        return self.node + self.path

    def lacking(self, existing: str) -> list[str]:
        """The `NAME=` lines of an EnvironmentFile whose names an existing file does not have."""
        names = {line.partition("=")[0] for line in existing.splitlines()}
        wanted = [line for line in self.text.splitlines() if not line.startswith("#")]
        return [line for line in wanted if line.partition("=")[0] not in names]


Written = Literal["new", "changed", "unchanged", "kept", "edited"]
RECORD = ".rendered"  # a line per file that was written, as `sha256sum` reads them


def write_files(
    files: Iterable[RenderedFile], directory: Path, force: bool = False
) -> Iterator[tuple[RenderedFile, Written]]:
    """Write them one after the other. A file that was changed by hand since it was written, or that was not rendered at
    all, stays as it is ("edited"), unless `force`. Raises OSError."""
    record = _read_record(directory)
    try:
        for file in files:
            if not force and _is_edited(file, directory, record):
                yield file, "edited"
                continue
            try:
                written = write_file(file, directory)
            except OSError as error:
                error.filename = directory / file.place  # not the file aside, or a folder
                raise
            if not file.keep:
                record[file.place] = _digest(file.text.encode())
            yield file, written
    finally:
        if record:
            lines = [f"{digest}  {place}\n" for place, digest in sorted(record.items())]
            _replace(directory / RECORD, "".join(lines).encode(), 0o600)


def _is_edited(file: RenderedFile, directory: Path, record: dict[str, str]) -> bool:
    try:
        text = (directory / file.place).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if file.keep or text == file.text.encode():
        return False
    written = record.get(file.place)
    return MARK.encode() not in text if written is None else written != _digest(text)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _read_record(directory: Path) -> dict[str, str]:
    try:
        lines = (directory / RECORD).read_text(errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {place: digest for digest, _, place in (line.partition("  ") for line in lines)}


def write_file(file: RenderedFile, directory: Path) -> Written:
    """Write one file, and say what that changed. A file whose values are the operator's keeps them, and gets the names
    that it does not have yet. Raises OSError."""
    path = directory / file.place
    try:
        old = path.read_bytes()
    except FileNotFoundError:
        old = None
    text = file.text.encode()
    if old is not None and file.keep:
        names = file.lacking(old.decode(errors="replace"))
        if not names:
            return "kept"
        text = old.rstrip(b"\n") + "\n".join(["", *names, ""]).encode()
    mode = file.mode | stat.S_IWUSR  # a copy of it on the node can be copied over by the next one
    if old == text and stat.S_IMODE(path.stat().st_mode) == mode:
        return "unchanged"
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, text, mode)
    return "new" if old is None else "changed"


def _replace(path: Path, text: bytes, mode: int) -> None:
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(text)
        os.chmod(aside, mode)  # before it has its name: a secret is never open to others
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise
