"""The profiles of a compose file: modes where they exclude each other on the machine, else backends on demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from gateway.apps.importing.draft import backend_name
from gateway.apps.importing.launches import Launches
from gateway.config.problems import Path
from gateway.launch.command import parse
from gateway.launch.docker import read_docker_flags

_SHARE = 0.9  # of the machine's memory that vLLM takes where the command says nothing
_SHARES_MOST = 0.95  # of the engines that run side by side
_MODES_MOST = 60


def put_profiles(launches: Launches, profiles: Mapping[str, Sequence[str]], chosen: Iterable[str]) -> None:
    """Write what the profiles of backends say. `profiles`: backend -> its profiles; `chosen`: the profiles that the
    machine starts with, as COMPOSE_PROFILES names them."""
    backends = launches.draft.backends
    groups: dict[str, list[str]] = {}
    for name, own in profiles.items():
        for profile in own:
            groups.setdefault(profile, []).append(name)
    shares = {name: _share(entry.keys) for name, entry in backends.items()}
    ports = {name: _port(entry.keys) for name, entry in backends.items()}
    always = [name for name in backends if name not in profiles]
    exclusive: set[str] = set()
    for one, two in combinations(groups, 2):
        together = {*groups[one], *groups[two]}
        apart = {*groups[one]} ^ {*groups[two]}
        clash = len({ports[name] for name in together}) < len(together)
        if apart and (clash or sum(shares[name] for name in {*together, *always}) > _SHARES_MOST):
            exclusive |= {one, two}
    if not exclusive or len(exclusive) > _MODES_MOST:
        for name, own in profiles.items():
            launches.only_one_of([name], _path(name), f"in the profile {', '.join(own)} alone")
        return
    others = [name for name, own in profiles.items() if not exclusive & {*own}]
    for profile in sorted(groups, key=lambda one: one not in {*chosen}):
        if profile in exclusive:
            launches.draft.modes[backend_name(profile)] = [*always, *groups[profile], *others]
    for name in others:
        launches.only_one_of([name], _path(name), f"in the profile {', '.join(profiles[name])} alone")
    modes = ", ".join(launches.draft.modes)
    message = f"the profiles do not run side by side, so each is a mode: {modes}"
    launches.notes.changed(("services",), message, "the first is in force; `gateway fleet switch MODE` changes it")


def _path(name: str) -> Path:
    return ("services", name, "profiles")


def _share(keys: Mapping[str, Any]) -> float:
    launch = keys.get("launch") or {}
    share = parse(launch.get("command") or "", image=launch.get("image")).flags.get("gpu-memory-utilization", _SHARE)
    return float(share) if launch and isinstance(share, int | float) else 0.0


def _port(keys: Mapping[str, Any]) -> Any:
    """What no two running backends of the machine can both have: the port of the host."""
    launch = keys.get("launch")
    if "url" in keys or launch is None:
        return keys.get("url")
    command, run = (
        parse(launch.get("command") or "", image=launch.get("image")),
        read_docker_flags(launch.get("docker")),
    )
    return command.port if command.port is None else f"{keys.get('node')}:{run.host_port(command.port)}"
