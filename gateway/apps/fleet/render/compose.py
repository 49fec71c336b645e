"""The containers of a node as one compose file, for who would rather have docker start them than systemd.

A compose file cannot drop the page cache, clear shared memory or look for dead CUDA processes; the units do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.apps.fleet.render.files import COMPOSE, env_path
from gateway.apps.fleet.render.launches import NodeLaunch, Note, UnitStart
from gateway.apps.fleet.render.script import docker_flags
from gateway.apps.fleet.render.words import compose_text
from gateway.config.snapshot import Mode
from gateway.launch.docker import DockerFlag

_NAMES = {  # flag of `docker run` -> key with one value
    "cpus": "cpus",
    "cpuset-cpus": "cpuset",
    "hostname": "hostname",
    "ipc": "ipc",
    "memory": "mem_limit",
    "network": "network_mode",
    "pid": "pid",
    "platform": "platform",
    "pull": "pull_policy",
    "runtime": "runtime",
    "shm-size": "shm_size",
    "stop-signal": "stop_signal",
    "user": "user",
    "workdir": "working_dir",
}
_LISTS = {
    "add-host": "extra_hosts",
    "cap-add": "cap_add",
    "cap-drop": "cap_drop",
    "device": "devices",
    "dns": "dns",
    "env-file": "env_file",
    "expose": "expose",
    "group-add": "group_add",
    "label": "labels",
    "publish": "ports",
    "security-opt": "security_opt",
    "sysctl": "sysctls",
    "tmpfs": "tmpfs",
}
_SWITCHES = {"init": "init", "privileged": "privileged", "read-only": "read_only"}
_NAMED_VOLUME = re.compile(r"([A-Za-z0-9][\w.-]*):", re.ASCII)  # `hf:/hf`: no folder of the host
_ELSEWHERE = frozenset(("gpus", "ulimit", "log-driver", "log-opt"))


def compose_values(
    containers: list[NodeLaunch], starts: Mapping[tuple[str, str], UnitStart], modes: Mapping[str, Mode]
) -> dict[str, Any]:
    """The values of `compose.yaml.j2` for the containers of one node."""
    in_modes = {
        launch.name: [mode.name for mode in modes.values() if launch.backend.name in mode.backends]
        for launch in containers
    }
    profiles = {name: found or [_key(name)] for name, found in in_modes.items()}
    services = [_service(one, starts[one.backend.name, one.node.name], profiles) for one in containers]
    volumes = (_NAMED_VOLUME.match(volume) for launch in containers for volume in launch.volumes)
    return {
        "file": COMPOSE,
        "env_files": [env_path(launch.name) for launch in containers if launch.variables],
        "services": services,
        # Compose refuses a service with a volume that is not declared, and would put the project's name in front of it.
        "volumes": list(dict.fromkeys(match[1] for match in volumes if match)),
    }


def _key(unit: str) -> str:
    return unit.removeprefix("spark-")


def _service(launch: NodeLaunch, start: UnitStart, profiles: Mapping[str, list[str]]) -> dict[str, Any]:
    """One container. Every dollar sign is as compose wants it. `profiles`: those of each unit of the node."""
    text = compose_text
    own = profiles[launch.name]
    entrypoint = launch.entrypoint
    return {
        "key": _key(launch.name),
        "name": launch.name,
        "image": text(launch.launch.image or ""),
        "profiles": own,
        "command": [text(word) for word in launch.arguments],
        "entrypoint": None if entrypoint is None else {"entrypoint": [text(entrypoint)]},
        "environment": launch.env and {"environment": {name: text(value) for name, value in launch.env.items()}},
        "volumes": launch.volumes and {"volumes": [text(volume) for volume in launch.volumes]},
        "docker": _of_flags(docker_flags(launch)),
        "before": [
            {"key": _key(unit), "always": set(own) <= set(profiles[unit])} for unit in start.before if unit in profiles
        ],
        "health": text(_health_program(launch)) if launch.url and launch.port else None,
        "seconds": start.seconds,
    }


def _of_flags(flags: tuple[DockerFlag, ...]) -> dict[str, Any]:
    text = compose_text
    found: dict[str, Any] = {}
    for flag in flags:
        if flag.name in _SWITCHES:
            found[_SWITCHES[flag.name]] = flag.value != "false"
        elif flag.value is None:
            continue
        elif flag.name in _NAMES:
            found[_NAMES[flag.name]] = text(flag.value)
        elif flag.name in _LISTS:
            found.setdefault(_LISTS[flag.name], []).append(text(flag.value))
        elif flag.name == "ulimit":
            name, _, limit = flag.value.partition("=")
            found.setdefault("ulimits", {})[name] = _limit(limit)
        elif flag.name == "log-driver":
            found.setdefault("logging", {})["driver"] = text(flag.value)
        elif flag.name == "log-opt":
            name, _, value = flag.value.partition("=")
            found.setdefault("logging", {}).setdefault("options", {})[name] = text(value)
        elif flag.name == "gpus":
            found["deploy"] = {"resources": {"reservations": {"devices": [_gpus(flag.value)]}}}
    return found


def _limit(text: str) -> int | dict[str, int] | str:
    """`-1`, or `SOFT:HARD`."""
    soft, colon, hard = text.partition(":")
    try:
        return {"soft": int(soft), "hard": int(hard)} if colon else int(soft)
    except ValueError:
        return text


def _gpus(value: str) -> dict[str, Any]:
    """`all`, a count, or `device=0,1`."""
    found: dict[str, Any] = {"driver": "nvidia", "capabilities": ["gpu"]}
    key, _, devices = value.strip('"').partition("=")
    if key == "device":
        return found | {"device_ids": devices.split(",")}
    return found | {"count": int(value) if value.isdecimal() else "all"}


def _health_program(launch: NodeLaunch) -> str:
    base = (launch.url or "").rpartition(":")[0]
    url = f"{base}:{launch.port}{launch.backend.health.path}"
    ask = f"import urllib.request as r; r.urlopen({url!r}, timeout=5)"
    if base.startswith("https:"):
        return f"import ssl; {ask[:-1]}, context=ssl._create_unverified_context())"
    return ask


def compose_notes(launch: NodeLaunch) -> Iterator[Note]:
    """Flags of `docker run` that a compose file has no key for, as far as this module knows them."""
    known = {*_NAMES, *_LISTS, *_SWITCHES, *_ELSEWHERE}
    unknown = [flag.option for flag in launch.flags if flag.name not in known]
    if unknown and launch.launch.image:
        yield Note(f"{launch.path}.docker", f"not in compose.yaml, only in the unit: {', '.join(unknown)}")
