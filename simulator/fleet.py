"""Simulates the fleet of a routes.yaml in this process, for `gateway demo`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gateway.config.snapshot import Backend, Snapshot
from simulator.audio import SimAudio
from simulator.base import Sim
from simulator.control import Control
from simulator.exporter import SimExporter
from simulator.formats import FORMATS
from simulator.ollama import SimOllama
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
_COLD_START = 20.0  # simulated seconds until an engine started on demand serves; the real ones take 4 to 10 minutes


def family_of(*names: str | None) -> Family:
    """The family that a model's (or backend's) name belongs to."""
    text = " ".join(n for n in names if n).lower()
    return next((f for f in FAMILIES if all(mark in text for mark in f.marks)), _UNKNOWN)


class SimFleet(dict[str, str]):
    """The running simulation: backend name -> its simulated URL. `control_url`/_sim controls it. `sims`: backend -> its
    server (the backends of one Ollama share theirs). `exporters`: node -> URL of its exporter."""

    def __init__(self, speedup: float) -> None:
        super().__init__()
        self.sims: dict[str, Sim] = {}
        self._speedup = speedup
        self.exporters: dict[str, str] = {}
        self._servers: dict[Hashable, Sim] = {}
        self._machines: dict[str, SimExporter] = {}
        self._control: SimServer

    @property
    def control_url(self) -> str:
        return self._control.url

    async def open(self, snapshot: Snapshot, control_port: int) -> None:
        """Raises OSError when the control port is in use."""
        await self.follow(snapshot)
        self._control = SimServer(Control(self.sims), port=control_port)
        await self._control.__aenter__()

    async def follow(self, snapshot: Snapshot) -> None:
        """Simulate the new backends of an edited file. Running servers stay as they are; servers of removed backends
        are no longer controlled, and end with the simulation."""
        self.sims.clear()
        for key, group in _groups(snapshot).items():
            sim = self._servers.get(key)
            if sim is None:
                sim = self._servers[key] = _simulated(group, self._speedup)
                await sim.start(running=any(b.run == "always" for b in group))
            for backend in group:
                self.sims[backend.name] = sim
                self[backend.name] = sim.url
        for name, node in snapshot.nodes.items():
            if node.exporter is not None:
                living = [sim for backend, sim in self.sims.items() if name in snapshot.backends[backend].nodes]
                await self._follow_machine(name, living, node.memory or _MEMORY)

    async def _follow_machine(self, name: str, living: list[Sim], memory: int) -> None:
        machine = self._machines.get(name)
        if machine is None:
            machine = self._machines[name] = SimExporter(living, memory)
            await machine.server.__aenter__()
            self.exporters[name] = machine.url
        machine.sims = list(dict.fromkeys(living))

    async def stop(self) -> None:
        for sim in self._servers.values():
            await sim.stop()
        for machine in self._machines.values():
            await machine.server.close()
        await self._control.close()

    async def __aenter__(self) -> SimFleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


async def start_fleet(snapshot: Snapshot, *, speedup: float = 1.0, control_port: int = 0) -> SimFleet:
    """Simulate every backend that is not cloud on free ports of 127.0.0.1. `speedup`: simulated seconds per real one.

    Backends with the same origin and model share a server, so do all backends of one Ollama. Those with
    `run: on_demand` have a port that refuses until `POST /_sim/{name}/start` on the control port. Raises OSError when
    the control port is in use.
    """
    fleet = SimFleet(speedup)
    await fleet.open(snapshot, control_port)
    return fleet


def _groups(snapshot: Snapshot) -> dict[Hashable, list[Backend]]:
    """The backends of each server. The modes of a Spark have different models on one port: those get a server each."""
    groups: dict[Hashable, list[Backend]] = {}
    for backend in snapshot.backends.values():
        if backend.cloud or backend.url is None or backend.engine == "litellm":
            continue
        own = () if backend.engine == "ollama" else (backend.model or backend.name,)
        groups.setdefault((backend.engine, *backend.origin, *own), []).append(backend)
    return groups


def _simulated(group: list[Backend], speedup: float) -> Sim:
    first = group[0]
    if first.engine == "ollama":
        return _ollama(group, speedup)
    if first.engine == "http":
        return SimAudio(first.name, first.serves, speedup=speedup)
    family = family_of(first.model, first.name)
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
        cold_start=_COLD_START if first.run != "always" else 0.0,
        thinking=first.thinking or family.thinking,
        vision=bool(first.vision),
        crowding=family.crowding,
        prefix_cache=flags.get("enable-prefix-caching") is not False,
        spec_tokens=_drafted(flags),
        flags=flags,
        speedup=speedup,
        generic=first.engine == "openai",
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
