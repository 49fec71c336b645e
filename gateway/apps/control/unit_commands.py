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

from gateway.config.modes import parked_by
from gateway.config.snapshot import Backend, Node, Snapshot
from gateway.launch.words import split
from gateway.printable import visible

STRICT = ("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes")
# A connection that is cut is given up 20 s after the last byte. A node that loads weights may be mute for some seconds.
_BOUNDS = ("-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=4")
SSH = (*STRICT, *_BOUNDS, "--")

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


# What the gateway tells a node, as the user of its ssh: which profile each backend runs with (`UNIT.profile`), and
# which units the mode in force leaves out (`parked`, one a line), which do not load at boot. `UNIT.last` is the node's:
# the last words of an engine that ended.
PROFILES = "/var/lib/spark"
PARKED = f"{PROFILES}/parked"
_UNUSABLE = re.compile(r"[^A-Za-z0-9_.-]")  # in the name of a container or unit
# Whole or not at all. Nothing of it needs root: the folder belongs to the user of ssh. A launch script of before it
# knows no profiles, so starting without one needs no folder.
_CHOICE = """\
[ -d {folder} ] || { {missing}; }; umask 022 && printf '%s\\n' {profile} >{file}.new && mv -f {file}.new {file}"""
_NOT_INSTALLED = (
    "echo 'the files of this node know no profiles yet: gateway fleet render, and install them' >&2; exit 1"
)
_PARK = "[ -d {folder} ] || exit 0; umask 022 && printf '%s' {units} >{file}.new && mv -f {file}.new {file}"


@dataclass(frozen=True, slots=True)
class Unit:
    """A rendered unit, and the container of its name, on one node. `target`: the node's `ssh`."""

    node: str
    target: str
    name: str


@dataclass(frozen=True, slots=True)
class Command:
    """`shown` names the command for people. A line of the operator's own may hold a secret, so only its key is
    shown. `unit`: the one that it starts or stops, None: it is no command of systemd."""

    argv: tuple[str, ...]
    shown: str
    unit: Unit | None = None


def unit_name(backend: str) -> str:
    """Name of the unit (without .service), the container and the directory of a backend: `spark-<backend>`. A character
    that containers or units do not take becomes a dash."""
    return f"spark-{_UNUSABLE.sub('-', backend)}"


def profile_path(name: str) -> str:
    """The file with the name of the profile that the unit `name` runs with; empty where it runs with none."""
    return f"{PROFILES}/{name}.profile"


def last_path(name: str) -> str:
    """The file with the last words of the engine of the unit `name`, which its launch script leaves."""
    return f"{PROFILES}/{name}.last"


def start_commands(backend: Backend, nodes: Mapping[str, Node], profile: str = "") -> tuple[Command, ...]:
    """The commands that start the backend with a profile ("" = with none), in this order: of an engine over several
    nodes the workers first, then the head. Empty if no command is known. A line of the operator's own knows no
    profiles."""
    if backend.start is not None:
        return (_written(backend.name, "start", backend.start),)
    order = backend.nodes[:0:-1] + backend.nodes[:1]
    units = _ordered(_rendered(backend, nodes, order), "start", "--no-block")
    return (*_choices(backend, nodes, order, profile), *units) if units else ()


def _choices(backend: Backend, nodes: Mapping[str, Node], order: tuple[str, ...], profile: str) -> Iterator[Command]:
    """Write on every node which profile the launch script is to start with. ssh gives its one word to a shell there."""
    if not backend.profiles:
        return
    missing = "exit 0" if not profile else _NOT_INSTALLED
    line = _filled(_CHOICE, file=profile_path(unit_name(backend.name)), profile=shlex.quote(profile), missing=missing)
    shown = f"profile {visible(profile)}" if profile else "no profile"
    for name in order:
        yield Command((*SSH, str(nodes[name].ssh), line), f"ssh {nodes[name].ssh}: {shown}")


def stop_commands(backend: Backend, nodes: Mapping[str, Node]) -> tuple[Command, ...]:
    """The commands that stop the backend and return when it is stopped: the head first. Empty if no command is
    known."""
    if backend.stop is not None:
        return (_written(backend.name, "stop", backend.stop),)
    return _ordered(_rendered(backend, nodes, backend.nodes), "stop")


def journal_of(backend: Backend, nodes: Mapping[str, Node]) -> str:
    """The command that shows why the rendered unit does not start; empty where another command starts the backend."""
    units = units_of(backend, nodes)
    return f"ssh {units[0].target} journalctl -u {units[0].name} -n 50" if units else ""


def units_of(backend: Backend, nodes: Mapping[str, Node]) -> tuple[Unit, ...]:
    """The rendered units of a backend, the head first; empty where another command starts it."""
    return () if backend.start is not None else _rendered(backend, nodes, backend.nodes)


def park_commands(snapshot: Snapshot, mode: str) -> tuple[Command, ...]:
    """Write on every node which units do not load when it boots: those that the mode leaves out. A node whose files are
    of before that is left as it is."""
    parked: dict[str, list[str]] = {}
    for backend in snapshot.backends.values():
        for unit in units_of(backend, snapshot.nodes):
            names = parked.setdefault(unit.target, [])
            if parked_by(snapshot.modes[mode], backend) is not None:
                names.append(unit.name)
    return tuple(
        Command(
            (*SSH, target, _filled(_PARK, file=PARKED, units=shlex.quote("".join(f"{n}\n" for n in names)))),
            f"ssh {target}: mode {visible(mode)}",
        )
        for target, names in parked.items()
    )


def _filled(line: str, **words: str) -> str:
    values = {"folder": PROFILES, **words}
    return re.sub(r"\{([a-z]+)\}", lambda found: values[found[1]], line)


def _written(backend: str, key: str, line: str) -> Command:
    return Command(split(line).words, f"backends.{backend}.{key}")


def _rendered(backend: Backend, nodes: Mapping[str, Node], order: tuple[str, ...]) -> tuple[Unit, ...]:
    """The unit that `gateway fleet render` writes, on each of these nodes. Empty where there is no such unit, or a node
    has no `ssh`: half an engine is never started."""
    targets = [nodes[name].ssh if name in nodes else None for name in order]
    if backend.launch is None or not backend.launch.starts or not all(targets):
        return ()
    name = unit_name(backend.name)
    return tuple(Unit(node, str(target), name) for node, target in zip(order, targets, strict=True))


def _ordered(units: tuple[Unit, ...], *verb: str) -> tuple[Command, ...]:
    """The command of systemd for each of these."""
    return tuple(
        Command(
            (*SSH, unit.target, "sudo", "systemctl", *verb, unit.name),
            f"ssh {unit.target} sudo systemctl {verb[0]} {unit.name}",
            unit,
        )
        for unit in units
    )
