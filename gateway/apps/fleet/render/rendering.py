"""A snapshot as the files of its nodes. Pure, but for the templates: nothing else is read, written or asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.apps.control.memory.arithmetic import GIB
from gateway.apps.control.memory.settings import UTILIZATION
from gateway.apps.control.unit_commands import KEY, KNOWN_HOSTS, PARKED, PROFILES, last_path, profile_path
from gateway.apps.fleet.render.compose import compose_notes, compose_values
from gateway.apps.fleet.render.files import (
    COMPOSE,
    GATEWAY,
    HOST_KEYS,
    INSTALLER,
    MARK,
    SUDOERS,
    UNITS,
    RenderedFile,
    Rendering,
    env_path,
    script_path,
    unit_path,
)
from gateway.apps.fleet.render.launches import NodeLaunch, UnitStart, node_launches
from gateway.apps.fleet.render.script import script_values, warms_up
from gateway.apps.fleet.render.templates import Templates
from gateway.config.snapshot import Mode, Node, Snapshot

# A cold start is weights, compilation and CUDA graphs: 8 to 10 minutes for most models, 10 to 15 for 75 GB of weights.
_BASE_SECONDS = 600
_SECONDS_PER_GIB = 12
_SECONDS_BETWEEN_NODES = 600
_UNKNOWN_SECONDS = 1800


def starts(
    launches: Iterable[NodeLaunch], snapshot: Snapshot, weights: Mapping[str, float]
) -> dict[tuple[str, str], UnitStart]:
    """(backend, node) -> its start. The biggest loads first, because an engine checks its share of the memory against
    what is free, and takes more while it profiles than it keeps: each one waits until those before it answer. One order
    for the whole fleet, so that no two engines wait for each other. `weights`: backend -> GiB that it loads on one
    node, as far as they are known."""
    ordered = sorted(launches, key=_share, reverse=True)
    found: dict[tuple[str, str], UnitStart] = {}
    for index, launch in enumerate(ordered):
        seconds, before = start_seconds(launch, weights), {}
        for other in ordered[:index]:
            url = _seen_from(other, ordered)
            beside = other.node.name == launch.node.name and other.name != launch.name
            if beside and url and _run_together(other.backend.name, launch.backend.name, snapshot.modes):
                before[other.name] = url + other.backend.health.path
                seconds = max(seconds, start_seconds(other, weights))
        found[launch.backend.name, launch.node.name] = UnitStart(seconds, before)
    return found


def start_seconds(launch: NodeLaunch, weights: Mapping[str, float]) -> int:
    """How long a start may take, by what the engine holds in memory (`resident`), which is at least its weights; else
    by its weights alone."""
    extra = _SECONDS_BETWEEN_NODES if launch.nodes > 1 else 0
    resident = launch.launch.resident
    gib = weights.get(launch.backend.name) if resident is None else resident / GIB
    if gib is None:
        return _UNKNOWN_SECONDS + extra
    seconds = _BASE_SECONDS + extra + _SECONDS_PER_GIB * gib
    return 60 * round(seconds / 60)


def _share(launch: NodeLaunch) -> float:
    """The share of a node's memory that the engine asks for; 0 = not known."""
    share = launch.command.flags.get("gpu-memory-utilization")
    if isinstance(share, int | float):
        return float(share)
    if launch.launch.resident and launch.node.memory:
        return launch.launch.resident / launch.node.memory
    return UTILIZATION if launch.command.is_vllm else 0.0


def _run_together(one: str, other: str, modes: Mapping[str, Mode]) -> bool:
    """Whether both may be started: some mode has both, or one of them is in no mode."""
    of_one, of_other = ({mode.name for mode in modes.values() if backend in mode.backends} for backend in (one, other))
    return not of_one or not of_other or bool(of_one & of_other)


def _seen_from(launch: NodeLaunch, launches: Iterable[NodeLaunch]) -> str | None:
    """Where the engine answers, as seen from this node: a worker answers nowhere, its head does."""
    if not launch.is_worker:
        return launch.url
    head = next(one for one in launches if one.name == launch.name and not one.is_worker)
    if head.url is None or head.node.address is None:
        return None
    port = head.url.rpartition(":")[2]
    address = f"[{head.node.address}]" if ":" in head.node.address else head.node.address
    return f"{head.url.partition('://')[0]}://{address}:{port}"


OWN_UNITS = ("spark-gateway", "spark-gateway-next")  # they take turns (docs/deploy.md)
_FOLDER = "/etc/spark-gateway/ssh"
# `attempts`: starts in a row until systemd gives up; `stop_seconds`: then `docker stop` kills the container.
_EVERYWHERE = {"mark": MARK, "attempts": 4, "stop_seconds": 90}


def render(
    snapshot: Snapshot,
    profiles: Mapping[str, str] | None = None,
    weights: Mapping[str, float] | None = None,
    templates: Templates | None = None,
    refused: Mapping[str, str] | None = None,
) -> Rendering:
    """The files of every node that has launch blocks. `profiles`: backend -> the profile to render instead of the plain
    command. `weights`: backend -> GiB that it loads on one node, as far as they are known. `refused`: backend -> why it
    is not rendered. Raises BadTemplate."""
    launches, notes = node_launches(snapshot, profiles or {}, refused)
    files = tuple(_Files(snapshot, launches, starts(launches, snapshot, weights or {}), templates or Templates()).all())
    further = dict.fromkeys(note for launch in launches for note in compose_notes(launch))
    secrets = frozenset(value for launch in launches for value in launch.secret_values)
    return Rendering(files, (*notes, *further), secrets)


@dataclass(frozen=True)
class _Files:
    """Makes the files of all machines. `order`: (backend, node) -> when it starts."""

    snapshot: Snapshot
    launches: tuple[NodeLaunch, ...]
    order: Mapping[tuple[str, str], UnitStart]
    templates: Templates

    def all(self) -> Iterator[RenderedFile]:
        for node in dict.fromkeys(launch.node.name for launch in self.launches):
            yield from self._of_node(node, [launch for launch in self.launches if launch.node.name == node])
        yield from self._of_gateway(launch.node for launch in self.launches)

    def _made(
        self, node: str, path: str, mode: int, template: str, values: Mapping[str, Any], keep: bool = False
    ) -> RenderedFile:
        text = self.templates.render(template, {**_EVERYWHERE, "node": node, **values})
        return RenderedFile(node, path, str(text), mode, keep)

    def _of_node(self, node: str, launches: list[NodeLaunch]) -> Iterator[RenderedFile]:
        files = [file for launch in launches for file in self._of_launch(launch)]
        containers = [launch for launch in launches if launch.launch.image]
        if containers:
            mode = 0o600 if any(launch.secrets for launch in containers) else 0o644
            values = compose_values(containers, self.order, self.snapshot.modes)
            files.append(self._made(node, COMPOSE, mode, "compose.yaml.j2", values))
        user = launches[0].user
        if user is not None:
            values = {"user": user, "units": [launch.name for launch in launches]}
            files.append(self._made(node, SUDOERS, 0o440, "sudoers.j2", values))
        yield from files
        at_boot = [launch for launch in launches if self._is_at_boot(launch)]
        first = next(iter(self.snapshot.modes.values()), None)
        values = {
            "files": [_installed(file) for file in files],
            "units": [file.path.rpartition("/")[2] for file in files if file.path.startswith(UNITS)],
            "boot": [launch.name for launch in at_boot],
            "folder": bool(self.snapshot.modes) or any(launch.backend.profiles for launch in launches),
            "parked": [one.name for one in at_boot if first is not None and one.backend.name not in first.backends],
            "parked_file": PARKED,
            "profiles_folder": PROFILES,
            "user": user,
        }
        yield self._made(node, INSTALLER, 0o755, "install.sh.j2", values)

    def _of_launch(self, launch: NodeLaunch) -> Iterator[RenderedFile]:
        node = launch.node.name
        start = self.order[launch.backend.name, node]
        values = _launch_values(launch, start)
        yield self._made(node, unit_path(launch.name), 0o644, "unit.service.j2", values)
        # A secret that is written out is for root alone; who runs an engine on the host must read the script.
        private = bool(launch.secrets) and (launch.launch.image is not None or launch.user is None)
        script = {**values, **script_values(launch, self.templates)}
        yield self._made(node, script_path(launch.name), 0o700 if private else 0o755, "launch.sh.j2", script)
        if launch.variables:
            yield self._made(node, env_path(launch.name), 0o600, "spark.env.j2", values, keep=True)

    def _is_at_boot(self, launch: NodeLaunch) -> bool:
        """Whether the unit is enabled: its backend always runs; with modes, some mode has it, and a boot loads what the
        mode in force has."""
        if not self.snapshot.modes:
            return launch.backend.run == "always"
        own = any(launch.backend.name in mode.backends for mode in self.snapshot.modes.values())
        return own and launch.backend.run != "on_request"

    def _of_gateway(self, nodes: Iterable[Node]) -> Iterator[RenderedFile]:
        """What the gateway needs to start and stop units over ssh: drop-ins for its own units, which hand them a key
        and the known hosts. No files where it reaches no node by ssh."""
        targets = [node.ssh for node in nodes if node.ssh and not node.ssh.startswith("-")]
        if not targets:
            return
        values = {
            "node": "the gateway's machine",
            "key": KEY,
            "key_file": f"{_FOLDER}/id_ed25519",
            "hosts": KNOWN_HOSTS,
            "hosts_file": f"{_FOLDER}/known_hosts",
            "machines": list(dict.fromkeys(target.rpartition("@")[2] for target in targets)),
        }
        drop_ins = [
            self._made(GATEWAY, f"{UNITS}/{unit}.service.d/fleet-ssh.conf", 0o644, "fleet-ssh.conf.j2", values)
            for unit in OWN_UNITS
        ]
        yield from drop_ins
        yield self._made(GATEWAY, HOST_KEYS, 0o755, "host-keys.sh.j2", values)
        files = [_installed(file) for file in drop_ins]
        yield self._made(GATEWAY, INSTALLER, 0o755, "gateway-install.sh.j2", {**values, "files": files})


def _launch_values(launch: NodeLaunch, start: UnitStart) -> dict[str, Any]:
    return {
        "backend": launch.backend.name,
        "path": launch.path,
        "name": launch.name,
        "image": launch.launch.image,
        "model": launch.command.model or launch.launch.image or launch.backend.name,
        "user": launch.user,
        "url": launch.url,
        "before": [{"unit": unit, "url": url} for unit, url in start.before.items()],
        "seconds": start.seconds,
        "warms_up": warms_up(launch),
        "variables": launch.variables,
        "script": script_path(launch.name),
        "env_file": env_path(launch.name),
        "profile_file": profile_path(launch.name),
        "last_file": last_path(launch.name),
        "parked_file": PARKED,
    }


def _installed(file: RenderedFile) -> dict[str, str]:
    verb = "keep" if file.keep else "put_sudoers" if file.path == SUDOERS else "put"
    return {"verb": verb, "mode": f"{file.mode:04o}", "path": file.path}
