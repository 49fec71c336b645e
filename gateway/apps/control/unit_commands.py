"""The commands that start and stop a backend: those of routes.yaml, or systemd over the ssh of its nodes. Pure.

A command is an argument vector: no shell reads it unless the operator wrote `sh -c`, and nothing in it comes from a
client.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.config.snapshot import Backend, Node
from gateway.launch.words import split
from gateway.printable import visible

STRICT = ("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes")
SSH = (*STRICT, "-o", "ConnectTimeout=10", "--")

# The credentials, files in $CREDENTIALS_DIRECTORY, and the options that make ssh use nothing but that file.
KEY, KNOWN_HOSTS = "fleet-ssh-key", "fleet-known-hosts"
_OPTIONS = {
    KEY: ("-i", "{path}", "-o", "IdentitiesOnly=yes"),
    KNOWN_HOSTS: ("-o", "UserKnownHostsFile={path}", "-o", "UpdateHostKeys=no"),
}


def with_credentials(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The same argument vector, which uses the credentials that systemd gave to this process. Unchanged where there are
    none, and where it does not begin with `STRICT`: an operator's own command has its own options."""
    folder = environ.get("CREDENTIALS_DIRECTORY")
    if not folder or tuple(argv[: len(STRICT)]) != STRICT:
        return tuple(argv)
    given = {name: Path(folder, name) for name in _OPTIONS}
    words = [(word, path) for name, path in given.items() if path.is_file() for word in _OPTIONS[name]]
    return (argv[0], *(word.replace("{path}", str(path)) for word, path in words), *argv[1:])


PROFILES = "/var/lib/spark"  # which profile each backend runs with; the user of the node's ssh writes there
_UNUSABLE = re.compile(r"[^A-Za-z0-9_.-]")  # in the name of a container or unit
# Whole or not at all. Nothing of it needs root: the folder belongs to the user of ssh. A launch script of before it
# knows no profiles, so starting without one needs no folder.
_CHOICE = """\
[ -d {folder} ] || { {missing}; }; umask 022 && printf '%s\\n' {profile} >{file}.new && mv -f {file}.new {file}"""
_NOT_INSTALLED = (
    "echo 'the files of this node know no profiles yet: gateway fleet render, and install them' >&2; exit 1"
)


@dataclass(frozen=True, slots=True)
class Command:
    """`shown` names the command for people. A line of the operator's own may hold a secret, so only its key is
    shown."""

    argv: tuple[str, ...]
    shown: str


def unit_name(backend: str) -> str:
    """Name of the unit (without .service), the container and the directory of a backend: `spark-<backend>`. A character
    that containers or units do not take becomes a dash."""
    return f"spark-{_UNUSABLE.sub('-', backend)}"


def profile_path(name: str) -> str:
    """The file with the name of the profile that the unit `name` runs with; empty where it runs with none."""
    return f"{PROFILES}/{name}.profile"


def start_commands(backend: Backend, nodes: Mapping[str, Node], profile: str = "") -> tuple[Command, ...]:
    """The commands that start the backend with a profile ("" = with none), in this order: of an engine over several
    nodes the workers first, then the head. Empty if no command is known. A line of the operator's own knows no
    profiles."""
    if backend.start is not None:
        return (_written(backend.name, "start", backend.start),)
    order = backend.nodes[:0:-1] + backend.nodes[:1]
    units = _units(backend, nodes, ("start", "--no-block"), order)
    return (*_choices(backend, nodes, order, profile), *units) if units else ()


def _choices(backend: Backend, nodes: Mapping[str, Node], order: tuple[str, ...], profile: str) -> Iterator[Command]:
    """Write on every node which profile the launch script is to start with. ssh gives its one word to a shell there."""
    if not backend.profiles:
        return
    line = _CHOICE
    for key, value in {
        "{folder}": PROFILES,
        "{file}": profile_path(unit_name(backend.name)),
        "{profile}": shlex.quote(profile),
        "{missing}": "exit 0" if not profile else _NOT_INSTALLED,
    }.items():
        line = line.replace(key, value)
    shown = f"profile {visible(profile)}" if profile else "no profile"
    for name in order:
        yield Command((*SSH, str(nodes[name].ssh), line), f"ssh {nodes[name].ssh}: {shown}")


def stop_commands(backend: Backend, nodes: Mapping[str, Node]) -> tuple[Command, ...]:
    """The commands that stop the backend and return when it is stopped: the head first. Empty if no command is
    known."""
    if backend.stop is not None:
        return (_written(backend.name, "stop", backend.stop),)
    return _units(backend, nodes, ("stop",), backend.nodes)


def journal_of(backend: Backend, nodes: Mapping[str, Node]) -> str:
    """The command that shows why the rendered unit does not start; empty where another command starts the backend."""
    if backend.start is not None or not start_commands(backend, nodes):
        return ""
    return f"ssh {nodes[backend.nodes[0]].ssh} journalctl -u {unit_name(backend.name)} -n 50"


def watch_commands(backend: Backend, nodes: Mapping[str, Node]) -> tuple[Command, ...]:
    """The commands that tell whether the rendered unit has failed for good, on every node. Needs no root. Empty where
    another command starts the backend."""
    if backend.start is not None or not start_commands(backend, nodes):
        return ()
    unit = unit_name(backend.name)
    words = ("systemctl", "show", "--property=ActiveState,ExecMainStatus", unit)
    targets = [str(nodes[name].ssh) for name in backend.nodes]
    return tuple(Command((*SSH, target, *words), f"ssh {target} {' '.join(words)}") for target in targets)


def has_failed(shown: str) -> str | None:
    """Why the unit is down for good, by the output of `watch_commands`; None if it is not. Between two attempts systemd
    calls a unit `activating`."""
    values = dict(line.partition("=")[::2] for line in shown.splitlines())
    if values.get("ActiveState") != "failed":
        return None
    return f"the unit has failed (exit code {values.get('ExecMainStatus', 'unknown')}), and systemd starts it no more"


def _written(backend: str, key: str, line: str) -> Command:
    return Command(split(line).words, f"backends.{backend}.{key}")


def _units(
    backend: Backend, nodes: Mapping[str, Node], verb: tuple[str, ...], order: tuple[str, ...]
) -> tuple[Command, ...]:
    """The unit that `gateway fleet render` writes, on each of these nodes. Empty where there is no such unit, or a node
    has no `ssh`: half an engine is never started."""
    targets = [nodes[name].ssh if name in nodes else None for name in order]
    if backend.launch is None or not backend.launch.starts or not all(targets):
        return ()
    words = ("sudo", "systemctl", *verb, unit_name(backend.name))
    return tuple(
        Command((*SSH, str(target), *words), f"ssh {target} sudo systemctl {verb[0]} {words[-1]}") for target in targets
    )
