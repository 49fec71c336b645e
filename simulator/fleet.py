"""Simulates the fleet of a routes.yaml in this process, for `gateway demo`."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from gateway.config.snapshot import Backend, Node, Snapshot
from simulator.audio import SimAudio
from simulator.base import Ending, Sim
from simulator.control import Control
from simulator.exporter import SimExporter
from simulator.formats import FORMATS
from simulator.habits import HABITS
from simulator.memory import UTILIZATION, Share, ollama_model_size
from simulator.ollama import SimOllama
from simulator.other import SimOther
from simulator.server import SimServer
from simulator.vllm import SimVllm


@dataclass(frozen=True, slots=True)
class Family:
    """A model family. `prefill`, `decode`: published tokens per second of one stream on a DGX Spark; `crowding`: the
    share by which each further stream lengthens a step."""

    marks: tuple[str, ...]  # all occur in the model's name
    prefill: float
    decode: float
    tools: str | None = None  # the family's own tool-call format
    reasoning: str | None = None
    crowding: float = 0.15
    thinking: Literal["optional", "always", "never"] | None = None


# the first match counts
FAMILIES = (
    Family(("qwen3.6",), 6200, 102, "qwen3_coder", "qwen3"),
    Family(("qwen3-next", "thinking"), 2500, 40, "hermes", "qwen3", thinking="always"),
    Family(("qwen3-next",), 2500, 40, "hermes", thinking="never"),
    Family(("qwen3-coder",), 2500, 40, "qwen3_coder", thinking="never"),
    Family(("qwen3.5",), 1500, 25, "qwen3_coder", "qwen3"),
    Family(("qwen3", "instruct"), 9000, 60, "hermes", thinking="never"),
    Family(("gemma-4",), 5800, 77, "gemma4", "gemma4"),
    Family(("gemma4",), 5800, 77, "gemma4", "gemma4"),
    Family(("deepseek-v4",), 800, 37.2, "deepseek_v4", "deepseek_v4", crowding=0.3),
    Family(("ds4",), 800, 37.2, "deepseek_v4", "deepseek_v4", crowding=0.3),
    Family(("nemotron",), 4000, 60, "qwen3_coder", "nemotron_v3"),
)
_UNKNOWN = Family((), 3000, 40)
_OLLAMA = Family((), 2500, 38)
_MEMORY = 128_500_000_000  # bytes of a DGX Spark, the default of `memory`
_DRAFTED_MOST = 32  # tokens of a draft
_COLD_START = 20.0  # simulated seconds until an engine that is started serves; the real ones take 4 to 10 minutes
_QUICK_START = 2.0  # the same of an Ollama or a speech server

Holdings = Mapping[str, Mapping[str, int]]
"""Backend -> node -> bytes that it holds there once it runs."""
UNKNOWN: Holdings = MappingProxyType({})


def family_of(*names: str | None) -> Family:
    """The family that a model's (or backend's) name belongs to."""
    text = " ".join(n for n in names if n).lower()
    return next((f for f in FAMILIES if all(mark in text for mark in f.marks)), _UNKNOWN)


@dataclass(slots=True)
class _Server:
    """A simulated server, and those of its backends that are switched on: it ends with the last of them."""

    sim: Sim
    on: set[str]
    backends: Mapping[str, Backend] = field(default_factory=dict)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)  # it starts or stops


class SimFleet(dict[str, str]):
    """The running simulation: backend name -> its simulated URL. `control_url`/_sim controls it. `sims`: backend -> its
    server (the backends of one Ollama share theirs). `exporters`: node -> URL of its exporter. `nodes`: node -> the
    account of its memory."""

    def __init__(self, speedup: float) -> None:
        super().__init__()
        self.sims: dict[str, Sim] = {}
        self.nodes: dict[str, SimExporter] = {}
        self.exporters: dict[str, str] = {}
        self._speedup = speedup
        self._servers: dict[Hashable, _Server] = {}
        self._control: SimServer

    @property
    def control_url(self) -> str:
        return self._control.url

    async def open(self, snapshot: Snapshot, control_port: int, holdings: Holdings = UNKNOWN) -> None:
        """Raises OSError when the control port is in use."""
        await self.follow(snapshot, holdings)
        self._control = SimServer(Control(self.sims, self), port=control_port)
        await self._control.__aenter__()

    async def follow(self, snapshot: Snapshot, holdings: Holdings = UNKNOWN) -> None:
        """Simulate the new backends of an edited file. Running servers stay as they are; servers of removed backends
        are no longer controlled, and end with the simulation."""
        added = self._follow_backends(snapshot)
        for name, node in snapshot.nodes.items():
            await self._follow_node(name, node, [s for b, s in self.sims.items() if name in snapshot.backends[b].nodes])
        for server in added:
            self._give_shares(server, holdings)
        # the largest first, as real nodes start them: each one finds what those before it leave free
        for server in sorted(added, key=lambda one: max((s.wants for s in one.sim.shares), default=0.0), reverse=True):
            await server.sim.start(running=bool(server.on))
        self.update({name: sim.url for name, sim in self.sims.items()})

    def _follow_backends(self, snapshot: Snapshot) -> list[_Server]:
        """Make the servers of new backends, not started yet."""
        begins, added = _begins(snapshot), []
        self.sims.clear()
        for key, group in _groups(snapshot).items():
            server = self._servers.get(key)
            if server is None:
                on = {backend.name for backend in group} & begins
                server = self._servers[key] = _Server(_simulated(group, self._speedup, running=bool(on)), on)
                added.append(server)
            server.backends = {backend.name: backend for backend in group}
            self.sims.update(dict.fromkeys(server.backends, server.sim))
        return added

    async def _follow_node(self, name: str, written: Node, sims: list[Sim]) -> None:
        memory = written.memory or _MEMORY
        node = self.nodes.setdefault(name, SimExporter((), memory))
        node.sims, node.memory = list(dict.fromkeys(sims)), memory
        if written.exporter is not None and name not in self.exporters:
            await node.server.__aenter__()
            self.exporters[name] = node.url

    def _give_shares(self, server: _Server, holdings: Holdings) -> None:
        """Tell a server what it takes of its nodes."""
        first, *_ = server.backends.values()
        if isinstance(server.sim, SimOllama):
            server.sim.runners.shares = {b.model or b.name: self._shares(b, holdings) for b in server.backends.values()}
        else:
            server.sim.shares = self._shares(first, holdings)

    def _shares(self, backend: Backend, holdings: Holdings) -> list[Share]:
        known, utilization = holdings.get(backend.name, {}), _utilization(backend)
        usual = ollama_model_size(backend.model or "") if backend.engine == "ollama" else 0
        nodes = {name: self.nodes[name] for name in backend.nodes if name in self.nodes}
        return [
            Share(node, known.get(name, round(utilization * node.memory) if utilization else usual), utilization)
            for name, node in nodes.items()
        ]

    # --- one backend ---

    async def start_backend(self, name: str) -> None:
        """Start its server, as `systemctl start` would: nothing happens where it runs. A start that finds too little
        memory free leaves a server that is not `alive` and says why in its `output`."""
        server = self._server_of(name)
        async with server.changing:
            server.on.add(name)
            if not server.sim.alive:
                quick = isinstance(server.sim, SimOllama | SimAudio)
                await server.sim.revive(_QUICK_START if quick else _COLD_START)
            if not server.sim.alive:
                server.on.discard(name)

    async def stop_backend(self, name: str, *, how: Ending = "abort") -> None:
        """Stop its server by SIGTERM (`how`: see `Sim.terminate`), and free its memory. Where another backend of that
        server is switched on, only its model is unloaded (Ollama)."""
        server = self._server_of(name)
        async with server.changing:
            server.on.discard(name)
            sim, backends = server.sim, server.backends
            if server.on & set(backends):
                models = {backends[other].model for other in server.on if other in backends}
                if isinstance(sim, SimOllama) and backends[name].model not in models:
                    sim.unload(backends[name].model or name)
            elif sim.alive:
                await sim.terminate(how=how)
            else:
                await sim.kill()

    def _server_of(self, name: str) -> _Server:
        return next(server for server in self._servers.values() if server.sim is self.sims[name])

    async def stop(self) -> None:
        for server in self._servers.values():
            await server.sim.stop()
        for node in self.nodes.values():
            await node.server.close()
        await self._control.close()

    async def __aenter__(self) -> SimFleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


async def start_fleet(
    snapshot: Snapshot, *, speedup: float = 1.0, control_port: int = 0, holdings: Holdings = UNKNOWN
) -> SimFleet:
    """Simulate every backend that is not cloud on free ports of 127.0.0.1. `speedup`: simulated seconds per real one.
    `holdings`: without a number, a vLLM holds the share of its launch command, a model of Ollama what its name says.

    Backends with the same origin and model share a server, so do all backends of one Ollama. What runs at the
    beginning are the backends of the first mode, or without modes those with `run: always`. The others have a port that
    refuses until `POST /_sim/{name}/start` on the control port. Raises OSError when the control port is in use.
    """
    fleet = SimFleet(speedup)
    await fleet.open(snapshot, control_port, holdings)
    return fleet


def _begins(snapshot: Snapshot) -> set[str]:
    """The backends that run when the simulation begins."""
    if snapshot.modes:
        return set(next(iter(snapshot.modes.values())).backends)
    return {backend.name for backend in snapshot.backends.values() if backend.run == "always"}


def _utilization(backend: Backend) -> float | None:
    """The part of a node's memory that its launch command takes; None where it starts no vLLM that is known."""
    if backend.launch is None or not backend.launch.parsed.is_vllm:
        return None
    written = backend.launch.parsed.flags.get("gpu-memory-utilization")
    return float(written) if isinstance(written, int | float) and 0 < written <= 1 else UTILIZATION


def _groups(snapshot: Snapshot) -> dict[Hashable, list[Backend]]:
    """The backends of each server. The modes of a Spark have different models on one port: those get a server each."""
    groups: dict[Hashable, list[Backend]] = {}
    for backend in snapshot.backends.values():
        if backend.cloud or backend.url is None or backend.engine == "litellm":
            continue
        own = () if backend.engine == "ollama" else (backend.model or backend.name,)
        groups.setdefault((backend.engine, *backend.origin, *own), []).append(backend)
    return groups


def _simulated(group: list[Backend], speedup: float, *, running: bool) -> Sim:
    first = group[0]
    if first.engine == "ollama":
        return _ollama(group, speedup)
    if first.engine == "http":
        paths = {name: first.root_path + str(path) for name, path in first.paths.items()}
        return SimAudio(first.name, first.serves, paths=paths, speedup=speedup)
    family = family_of(first.model, first.name)
    cold_start = 0.0 if running else _COLD_START
    if (kind := first.server or first.engine) in HABITS:
        return SimOther(
            kind,
            first.model or first.name,
            slots=first.slots or 1,
            prefill=family.prefill,
            decode=family.decode,
            name=first.name,
            speedup=speedup,
            cold_start=cold_start,
        )
    usual = family.tools or "hermes"  # undeclared, or a parser that the simulator does not know
    parser = first.tool_parser if first.tool_parser in (*FORMATS, "none") else usual
    flags = first.launch.parsed.flags if first.launch is not None else {}
    return SimVllm(
        first.name,
        served=[first.model or first.name],
        context=first.context or 131072,
        slots=first.slots or 8,
        prefill=family.prefill,
        decode=family.decode,
        tool_parser=parser,
        reasoning_parser=first.reasoning_parser or family.reasoning,
        api_key=first.api_key.reveal() if first.api_key else None,
        auto_tools=first.auto_tools is not False,
        cold_start=cold_start,
        thinking=first.thinking or family.thinking,
        vision=bool(first.vision),
        crowding=family.crowding,
        prefix_cache=flags.get("enable-prefix-caching") is not False,
        spec_tokens=_drafted(flags),
        flags=flags,
        speedup=speedup,
        generic=first.engine == "openai",
        responds=first.engine == "vllm" and first.responses != "chat",
        dev_mode=first.launch is not None and first.launch.env.get("VLLM_SERVER_DEV_MODE") == "1",
    )


def _drafted(flags: Mapping[str, Any]) -> int:
    """Tokens that a command line has drafted at a time."""
    config = flags.get("speculative-config")
    count = config.get("num_speculative_tokens") if isinstance(config, dict) else flags.get("spec-tokens")
    return min(count, _DRAFTED_MOST) if type(count) is int and count > 0 else 0


def _ollama(group: Iterable[Backend], speedup: float) -> SimOllama:
    backends = list(group)
    return SimOllama(
        backends[0].name,
        models=list(dict.fromkeys(b.model or b.name for b in backends)),
        slots=max(b.slots or 1 for b in backends),
        prefill=_OLLAMA.prefill,
        decode=_OLLAMA.decode,
        load=4.0,
        speedup=speedup,
    )
