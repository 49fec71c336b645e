"""What is installed on the nodes beside what would be rendered: files of this machine, or `cat` over ssh."""

from __future__ import annotations

import difflib
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from gateway.apps.control.unit_commands import STRICT, with_credentials
from gateway.apps.fleet.render.rendering import Rendering
from gateway.apps.fleet.render.words import masked
from gateway.apps.fleet.render.write import GATEWAY, NOT_INSTALLED, OWN_UNIT, SUDOERS, RenderedFile
from gateway.config.snapshot import Node

PATIENCE = 30.0  # seconds for one command over ssh
_UNREACHABLE = 255  # exit code of ssh itself

State = Literal["same", "differs", "missing", "unknown"]


class CommandOutput(NamedTuple):
    """What a command gave: its exit code and what it wrote."""

    code: int
    out: bytes
    err: bytes


class Run(Protocol):
    """Runs an argument vector without a shell; raises OSError, or TimeoutError after `timeout` seconds."""

    def __call__(self, command: Sequence[str], timeout: float) -> CommandOutput: ...


@dataclass(frozen=True, slots=True)
class Comparison:
    """One file: `diff` from the installed text to the rendered one, secrets masked; `reason` of a state that is not
    known."""

    file: RenderedFile
    state: State
    diff: str = ""
    reason: str = ""


class _Unreadable(Exception):
    """The file is there, or the machine is, and its text cannot be had."""


class _Unreachable(_Unreadable):
    """No file of the machine can be read."""


Read = Callable[[Sequence[str]], bytes | None]  # the texts of files, one after the other; None = one is missing


def run_command(command: Sequence[str], timeout: float) -> CommandOutput:
    """Run it, and kill it after `timeout` seconds."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer within {timeout:g} s") from None
    return CommandOutput(done.returncode, done.stdout, done.stderr)


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


def compare(
    rendering: Rendering,
    nodes: Mapping[str, Node],
    run: Run = run_command,
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
        if read([file.path for file in plain]) == "".join(file.text for file in plain).encode():
            yield from (Comparison(file, "same") for file in plain)
            plain = []
    except _Unreachable as error:
        yield from (Comparison(file, "unknown", reason=str(error)) for file in files)
        return
    except _Unreadable:
        pass
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
        if _is_for_root(file) and not isinstance(error, _Unreachable):
            return Comparison(file, "same", reason="" if file.keep else "not compared: only root reads it")
        return Comparison(file, "unknown", reason=str(error))
    if found is None:
        return Comparison(file, "missing")
    text = found.decode(errors="replace")
    if file.keep:
        return _of_values(file, text)
    if text == file.text:
        return Comparison(file, "same")
    return Comparison(file, "differs", _diff(file, masked(text, secrets), masked(file.text, secrets)))


def _of_values(file: RenderedFile, installed: str) -> Comparison:
    """An EnvironmentFile by its names; values are the operator's, and are never shown."""
    diff = "".join(f"+{line}\n" for line in file.lacking(installed))
    return Comparison(file, "differs" if diff else "same", diff)


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


def _read_here(paths: Sequence[str]) -> bytes | None:
    try:
        return b"".join(Path(path).read_bytes() for path in paths)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _Unreadable(f"cannot be read: {error.strerror}") from None


def _read_there(target: str, paths: Sequence[str], run: Run) -> bytes | None:
    try:
        answer = run(with_credentials((*STRICT, target, "cat", *paths)), PATIENCE)
    except (OSError, TimeoutError) as error:
        raise _Unreachable(f"ssh {target}: {error}") from None
    stated = answer.err.decode(errors="replace").strip().splitlines()
    last = stated[-1] if stated else f"exit code {answer.code}"
    if answer.code == _UNREACHABLE:
        raise _Unreachable(f"ssh {target}: {last}")
    if answer.code == 0:
        return answer.out
    if any("No such file" in line for line in stated):
        return None
    raise _Unreadable(f"cannot be read over ssh: {last}")
