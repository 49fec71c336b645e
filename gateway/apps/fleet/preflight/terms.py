"""The expectations for a node, and the results of its checks. Runs on the node: standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Verdict = Literal["ok", "warn", "fail", "unknown"]
GIB = 1024**3
CONTAINER_HOME = "/root"  # of the user of vLLM's images: where caches are that no variable places elsewhere


@dataclass(frozen=True)
class HostCheck:
    """The result of one check. `seen`: in words. `mend`: the command that mends it, None where there is nothing to
    mend. `backend`: whose start it concerns, None for the node's. `fact`: a value that has to be the same on all nodes
    of an engine (the driver's version, the image's id)."""

    check: str
    verdict: Verdict
    seen: str
    mend: str | None = None
    backend: str | None = None
    fact: str | None = None


def _with(verdict: Verdict) -> Callable[..., HostCheck]:
    def made(seen: str, mend: str | None = None, backend: str | None = None, fact: str | None = None) -> HostCheck:
        return HostCheck("", verdict, seen, mend, backend, fact)

    return made


# What a check yields; who runs it puts in its name.
ok, warn, fail, unknown = (_with(verdict) for verdict in get_args(Verdict))


@dataclass(frozen=True)
class ExpectedBackend:
    """What a backend's launch needs on the node.

    `port`: of the host. `models`: what is loaded (the model first, then the draft model), as the command names it.
    `env`: the settings that the checks read, no secrets. `nodes`: how many nodes it spans. `worker`: it runs here
    without an API. `unit`: the systemd unit that would start it; `by_unit`: the gateway starts it so. `weights`: bytes
    of its models on one node, as far as they are known."""

    name: str
    port: int | None = None
    master_port: int | None = None
    utilization: float | None = None
    image: str | None = None
    program: str | None = None
    models: tuple[str, ...] = ()
    served: str | None = None
    volumes: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 1
    worker: bool = False
    unit: str | None = None
    by_unit: bool = False
    weights: int | None = None


@dataclass(frozen=True)
class ExpectedNode:
    """A node as routes.yaml describes it. `memory` in bytes. `user`: of the gateway's ssh, empty = not known."""

    name: str
    memory: int | None = None
    exporter: str | None = None
    backends: tuple[ExpectedBackend, ...] = ()
    user: str = ""


def expected_node(data: Mapping[str, Any]) -> ExpectedNode:
    """The reverse of `dataclasses.asdict`, after a trip through JSON."""
    backends = []
    for one in data["backends"]:
        values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in one.items()}
        backends.append(ExpectedBackend(**values))
    return ExpectedNode(**{**data, "backends": tuple(backends)})


def gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"
