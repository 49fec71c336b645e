"""The containers of a node as one compose file, for who would rather have docker start them than systemd.

A compose file cannot drop the page cache, clear shared memory or look for dead CUDA processes; the units do."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from gateway.apps.fleet.render.docker_run import docker_flags
from gateway.apps.fleet.render.launches import NodeLaunch, Note
from gateway.apps.fleet.render.order import Start
from gateway.apps.fleet.render.paths import COMPOSE, MARK, env_path
from gateway.apps.fleet.render.unit import ATTEMPTS, STOP_SECONDS
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


def compose_file(
    launches: Iterable[NodeLaunch], starts: Mapping[tuple[str, str], Start], modes: Mapping[str, Mode]
) -> str | None:
    """The text of compose.yaml of one node; None where no backend of the node is a container."""
    containers = [launch for launch in launches if launch.launch.image]
    if not containers:
        return None
    names = {launch.name for launch in containers}
    services = {
        launch.name.removeprefix("spark-"): _service(
            launch, starts[launch.backend.name, launch.node.name], names, modes
        )
        for launch in containers
    }
    out = io.StringIO()
    yaml = YAML()
    yaml.width = 1_000_000  # never wrap inside a value
    yaml.indent(mapping=2, sequence=4, offset=2)
    project: dict[str, Any] = {"name": "spark", "services": services}
    if volumes := _named_volumes(containers):
        project["volumes"] = volumes
    yaml.dump(_quoted(project), out)
    return _head(containers) + out.getvalue()


def _quoted(value: Any) -> Any:
    """All texts in quotes, so that no reader of YAML takes one for a number, a time or a truth value."""
    if isinstance(value, dict):
        return CommentedMap({key: _quoted(inner) for key, inner in value.items()})
    if isinstance(value, list):
        return CommentedSeq(_quoted(inner) for inner in value)
    return DoubleQuotedScalarString(value) if isinstance(value, str) else value


def _named_volumes(containers: Iterable[NodeLaunch]) -> dict[str, dict[str, str]]:
    """Compose refuses a service with a volume that is not declared, and would put the project's name in front of its
    own: `name` makes it the volume that `docker run` uses."""
    volumes = (volume for launch in containers for volume in launch.volumes)
    return {match[1]: {"name": match[1]} for volume in volumes if (match := _NAMED_VOLUME.match(volume))}


def _head(containers: list[NodeLaunch]) -> str:
    env_files = "".join(f" --env-file {env_path(launch.name)}" for launch in containers if launch.variables)
    return (
        f"# {MARK} for {containers[0].node.name}. Edits here are lost: change routes.yaml.\n"
        f"# docker compose -f {COMPOSE}{env_files} --profile MODE up -d\n"
        "# Instead of the units, not beside them. Before a cold start, as the units do by themselves:\n"
        "#   sudo sh -c 'sync; echo 3 > /proc/sys/vm/drop_caches'\n"
    )


def _service(launch: NodeLaunch, start: Start, names: set[str], modes: Mapping[str, Mode]) -> dict[str, Any]:
    text = compose_text
    flags = docker_flags(launch)
    service: dict[str, Any] = {
        "image": text(launch.launch.image or ""),
        "container_name": launch.name,
        "profiles": [mode.name for mode in modes.values() if launch.backend.name in mode.backends]
        or [launch.name.removeprefix("spark-")],
        "command": [text(word) for word in launch.words.arguments],
    }
    if launch.words.entrypoint is not None:
        service["entrypoint"] = [text(launch.words.entrypoint)]
    if launch.env:
        service["environment"] = {name: text(value) for name, value in launch.env.items()}
    if launch.volumes:
        service["volumes"] = [text(volume) for volume in launch.volumes]
    service |= _of_flags(flags, text)
    before = [one.unit for one in start.before if one.unit in names]
    if before:
        ready = {"condition": "service_healthy", "required": False}
        service["depends_on"] = {unit.removeprefix("spark-"): dict(ready) for unit in before}
    if launch.url and launch.port:
        service["healthcheck"] = _healthcheck(launch, start)
    return service | {"restart": f"on-failure:{ATTEMPTS}", "stop_grace_period": f"{STOP_SECONDS}s"}


def _of_flags(flags: tuple[DockerFlag, ...], text: Callable[[str], str]) -> dict[str, Any]:
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


def _healthcheck(launch: NodeLaunch, start: Start) -> dict[str, Any]:
    # Asked inside the container: where its engine listens, at the container's own port.
    base = (launch.url or "").rpartition(":")[0]
    url = f"{base}:{launch.port}{launch.backend.health.path}"
    ask = f"import urllib.request as r; r.urlopen({url!r}, timeout=5)"
    if base.startswith("https:"):
        ask = f"import ssl; {ask[:-1]}, context=ssl._create_unverified_context())"
    return {
        "test": ["CMD", "python3", "-c", compose_text(ask)],
        "interval": "10s",
        "timeout": "10s",
        "retries": 3,
        "start_period": f"{start.seconds}s",
    }


def compose_notes(launch: NodeLaunch) -> Iterator[Note]:
    """Flags of `docker run` that a compose file has no key for, as far as this module knows them."""
    known = {*_NAMES, *_LISTS, *_SWITCHES, *_ELSEWHERE}
    unknown = [flag.option for flag in launch.flags if flag.name not in known]
    if unknown and launch.launch.image:
        yield Note("warning", f"{launch.path}.docker", f"not in compose.yaml, only in the unit: {', '.join(unknown)}")
