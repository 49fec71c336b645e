"""The machines of routes.yaml: nodes, what is launched on them, and the modes in which they run."""

# ruff: noqa: RUF009  (`setting` gives a dataclass field, as `dataclasses.field` does)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.config import kinds as k
from gateway.config import launch_kinds as lk
from gateway.config.setting import setting
from gateway.launch.command import ServeCommand
from gateway.launch.docker import DockerRun


@dataclass(frozen=True, slots=True)
class Node:
    """A machine."""

    name: str
    address: lk.Host | None = setting(None, "Its host name or address in the LAN, without port.")
    memory: k.Size | None = setting(None, "Memory that GPU and CPU share, e.g. 119.67GiB.")
    reserve: k.Size | None = setting(
        None, "Memory of it that is not free when it has booted, before any engine; default 3.6GiB."
    )
    link: lk.Host | None = setting(None, "Its address on the fast link between nodes; default its address.")
    exporter: k.Text | None = setting(None, "URL of its Prometheus exporter (temperatures, memory).")
    ssh: lk.SshTarget | None = setting(
        None, "Where `gateway fleet` reaches it by ssh: USER@HOST, or a Host of ssh_config."
    )


Entrypoint = Literal["vllm serve", "vllm", "none"]


@dataclass(frozen=True, slots=True)
class Launch:
    """The command that starts an engine, as it works by hand. What the gateway knows of the backend follows from it.

    `parsed` is the command read as vLLM's own parser reads it, `container` the flags of `docker`. `resident` in
    bytes."""

    image: k.Text | None = setting(None, "Container image; omitted = the command runs on the host itself.")
    command: lk.CommandLine | None = setting(None, "The whole line: vllm serve MODEL --port 8001 ...")
    env: lk.Environment = setting({}, "Environment variables of the engine; a ${NAME} stays a reference when rendered.")
    volumes: k.Names = setting((), "Mounts of the container, HOST:CONTAINER, as for `docker run -v`.")
    docker: lk.CommandLine | None = setting(None, "Further flags of `docker run`, e.g. --ipc=host --shm-size=16g.")
    resident: k.Size | None = setting(None, "Memory it holds once it runs, as measured; wins over the estimate.")
    parsed: ServeCommand = ServeCommand()
    container: DockerRun = DockerRun()
    entrypoint: Entrypoint | None = setting(
        None,
        "What the image itself runs in front of `command`; omitted = known for named images, else nothing is added.",
    )

    @property
    def starts(self) -> bool:
        """Whether it says what is started. A block with `resident` alone tells what was measured of an engine that
        something else starts: it has no unit, and nothing is known of a command."""
        return bool(self.command or self.image)

    def host_port(self, port: int) -> int:
        """The port of the node that leads to `port` of the engine."""
        return self.container.host_port(port) if self.image else port

    @property
    def variables(self) -> dict[str, str]:
        """The engine's environment variables, wherever they are written: those of `docker`, `env`, and in front of the
        program. What `docker` takes from its caller's environment (`-e NAME`) is left out."""
        given = {name: value for name, value in self.container.env.items() if value is not None}
        return {**given, **self.env, **self.parsed.env}

    @property
    def mounts(self) -> tuple[str, ...]:
        """Everything that is mounted, as for `docker run -v`."""
        return (*self.volumes, *self.container.volumes)


@dataclass(frozen=True, slots=True)
class Observed:
    """What an engine said of its memory when it started; `gateway fleet learn` writes it.

    In bytes, of one node; None: it did not say so."""

    engine: k.Text | None = setting(None, "Its version.")
    memory: k.Size | None = setting(None, "Memory of the node, as the engine counts it.")
    free: k.Size | None = setting(None, "Memory that was free when it started.")
    utilization: k.Share | None = setting(None, "The --gpu-memory-utilization that it ran with.")
    window: k.Count | None = setting(None, "The --max-model-len that it ran with.")
    cache_dtype: k.Text | None = setting(None, "The --kv-cache-dtype that it ran with.")
    weights: k.Size | None = setting(None, "Memory that its model took, a drafter's included.")
    kv: k.Size | None = setting(None, "Memory of its KV cache.")
    tokens: k.Count | None = setting(None, "Tokens that its KV cache holds.")
    concurrency: k.Number | None = setting(None, "Sequences of the whole window that its KV cache holds.")
    graphs: k.Size | None = setting(None, "Memory of its CUDA graphs.")


@dataclass(frozen=True, slots=True)
class Mode:
    """Backends that run together. `profiles`: backend -> the profile it is launched with."""

    name: str
    backends: tuple[str, ...]
    profiles: Mapping[str, str] = field(default_factory=dict)
