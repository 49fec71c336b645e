"""The rendered files: where they are installed on a node, how they are written below a directory (one folder per node,
each whole or not at all), and how they differ from what is installed: on this machine, or by `cat` over ssh.

The directory keeps a record of what was written, so that a file that somebody has changed since is not lost."""

from __future__ import annotations

import difflib
import hashlib
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gateway.apps.control.unit_commands import STRICT, with_credentials
from gateway.apps.fleet.preflight.host import CommandResult, run_bounded
from gateway.apps.fleet.render.launches import Note
from gateway.apps.fleet.render.words import masked
from gateway.config.snapshot import Node

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
                record[file.place] = hashlib.sha256(file.text.encode()).hexdigest()
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
    return MARK.encode() not in text if written is None else written != hashlib.sha256(text).hexdigest()


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


PATIENCE = 30.0  # seconds for one command over ssh
_MOST_ANSWER = 4 * 1024 * 1024  # bytes
_UNREACHABLE = 255  # exit code of ssh itself

State = Literal["same", "differs", "missing", "unknown"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One file: `diff` from the installed text to the rendered one, secrets masked; `reason` of a state that is not
    known."""

    file: RenderedFile
    state: State
    diff: str = ""
    reason: str = ""


class _Unreadable(Exception):
    """The file is there, or the machine is, and its text cannot be had. `of_all`: no file of the machine can be
    read."""

    def __init__(self, message: str, *, of_all: bool = False) -> None:
        super().__init__(message)
        self.of_all = of_all


Run = Callable[[Sequence[str]], CommandResult]  # an argument vector, without a shell
Read = Callable[[Sequence[str]], str | None]  # the texts of files, one after the other; None = one is missing


def _run(command: Sequence[str]) -> CommandResult:
    return run_bounded(command, PATIENCE, most=_MOST_ANSWER)


def is_here(node: Node) -> bool:
    """Whether this machine is the node: it has its name or its address."""
    if socket.gethostname().partition(".")[0] == node.name:
        return True
    if node.address is None:
        return False
    try:
        family, kind, _, _, address = socket.getaddrinfo(node.address, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as found:
            found.bind(address)
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Rendering:
    """The files in the order of the nodes, and what the operator should know. `secrets`: values that are written out in
    launch blocks, and so in the files."""

    files: tuple[RenderedFile, ...]
    notes: tuple[Note, ...]
    secrets: frozenset[str] = frozenset()


def compare(
    rendering: Rendering,
    nodes: Mapping[str, Node],
    run: Run = _run,
    here: Callable[[Node], bool] = is_here,
) -> list[Comparison]:
    """Every file that `install.sh` would install, beside what is installed."""
    found: list[Comparison] = []
    for name in dict.fromkeys(file.node for file in rendering.files):
        files = [file for file in rendering.files if file.node == name and file.path not in NOT_INSTALLED]
        if name != GATEWAY:
            found += _of_node(files, nodes[name], rendering.secrets, run, here)
        elif Path(OWN_UNIT).exists():  # this is the gateway's machine
            found += (_of_file(file, _read_here, ()) for file in files)
    return found


def _of_node(
    files: list[RenderedFile], node: Node, secrets: Iterable[str], run: Run, here: Callable[[Node], bool]
) -> Iterator[Comparison]:
    read = _reader(node, run, here)
    if isinstance(read, str):
        yield from (Comparison(file, "unknown", reason=read) for file in files)
        return
    plain = [file for file in files if not _is_for_root(file)]
    try:
        if read([file.path for file in plain]) == "".join(file.text for file in plain):
            yield from (Comparison(file, "same") for file in plain)
            plain = []
    except _Unreadable as error:
        if error.of_all:
            yield from (Comparison(file, "unknown", reason=str(error)) for file in files)
            return
    private = [file for file in files if _is_for_root(file)]
    yield from (_of_file(file, read, secrets) for file in (*plain, *private))


def _is_for_root(file: RenderedFile) -> bool:
    """Whether only root may read it, whatever is in it: an EnvironmentFile, or sudoers. That it cannot be read is how
    it should be."""
    return file.keep or file.path == SUDOERS


def _of_file(file: RenderedFile, read: Read, secrets: Iterable[str]) -> Comparison:
    try:
        found = read([file.path])
    except _Unreadable as error:
        if _is_for_root(file) and not error.of_all:
            return Comparison(file, "same", reason="" if file.keep else "not compared: only root reads it")
        return Comparison(file, "unknown", reason=str(error))
    if found is None:
        return Comparison(file, "missing")
    if file.keep:  # by its names: values are the operator's, and are never shown
        diff = "".join(f"+{line}\n" for line in file.lacking(found))
        return Comparison(file, "differs" if diff else "same", diff)
    if found == file.text:
        return Comparison(file, "same")
    return Comparison(file, "differs", _diff(file, masked(found, secrets), masked(file.text, secrets)))


def _diff(file: RenderedFile, installed: str, rendered: str) -> str:
    lines = difflib.unified_diff(
        installed.splitlines(), rendered.splitlines(), f"installed {file.place}", f"rendered {file.place}", lineterm=""
    )
    text = "\n".join(lines)
    return f"{text}\n" if text else "(it differs in a secret, or in its line ends)\n"


def _reader(node: Node, run: Run, here: Callable[[Node], bool]) -> Read | str:
    """How the files of a node are read, or why they cannot be."""
    if here(node):
        return _read_here
    if node.ssh is None:
        return f"this machine is not {node.name}, and the node has no `ssh`"
    if node.ssh.startswith("-"):
        return f"`ssh` of {node.name} is an option, not a machine"
    target = node.ssh
    return lambda paths: _read_there(target, paths, run)


def _read_here(paths: Sequence[str]) -> str | None:
    try:
        return "".join(Path(path).read_bytes().decode(errors="replace") for path in paths)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _Unreadable(f"cannot be read: {error.strerror}") from None


def _read_there(target: str, paths: Sequence[str], run: Run) -> str | None:
    ran = run(with_credentials((*STRICT, target, "cat", *paths)))
    if ran.code is None:
        raise _Unreadable(f"ssh {target}: {ran.why.removeprefix('ssh: ')} (within {PATIENCE:g} s)", of_all=True)
    if ran.code == _UNREACHABLE:
        raise _Unreadable(f"ssh {target}: {ran.why}", of_all=True)
    if ran.ok:
        return ran.out
    if "No such file" in ran.error:
        return None
    raise _Unreadable(f"cannot be read over ssh: {ran.why}")
