"""The last hour in numbers, for people who look: sampled every few seconds from what is known anyway, kept in memory,
off the request path."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import nan
from typing import Any

from gateway.domain.backend import BackendState
from gateway.health.exporter import Machine
from gateway.metrics.registry import Metrics
from gateway.observe.rates import EngineNow, Looks, Percentiles, Recent

EVERY = 5.0  # seconds between two samples
POINTS = 720  # samples that are kept: an hour
FIRST_TOKEN_OVER = 60  # samples over which percentiles of the time to first token are taken: five minutes
TOKENS_OVER = 12  # samples over which our own token counts make a rate: they come when an answer ends, in lumps

BACKEND_SERIES = ("decode", "prefill", "kv", "prefix_hits", "ttft_p50", "ttft_p95", "inflight", "queue")
NODE_SERIES = ("memory_used", "temperature", "power", "gpu")
GATEWAY_SERIES = ("requests", "errors")


class Series:
    """The last POINTS values of one number; NaN = not known."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values = array("d")

    def append(self, value: float | None) -> None:
        self._values.append(nan if value is None else value)
        if len(self._values) >= 2 * POINTS:
            del self._values[:-POINTS]

    def last(self, count: int) -> list[float]:
        return self._values[-count:].tolist()


class Lines:
    """Several series that are sampled together."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._series = {name: Series() for name in names}

    def append(self, values: Mapping[str, float | None]) -> None:
        for name, series in self._series.items():
            series.append(values.get(name))

    def told(self) -> dict[str, list[float]]:
        """The series in which something is known. They end now; a younger one is shorter."""
        found = ((name, series.last(POINTS)) for name, series in self._series.items())
        return {name: values for name, values in found if any(value == value for value in values)}  # NaN is not itself


@dataclass(slots=True)
class _Backend:
    """What is kept of one backend between two samples."""

    identity: object
    first_token: Recent
    lines: Lines = field(default_factory=lambda: Lines(BACKEND_SERIES))
    looks: Looks = field(default_factory=Looks)
    completion: Series = field(default_factory=Series)
    prompt: Series = field(default_factory=Series)


class History:
    """Samples the fleet every EVERY seconds. `latest` is the newest sample, as `/events` sends it."""

    def __init__(
        self,
        states: Callable[[], Mapping[str, BackendState]],
        machines: Callable[[], Mapping[str, Machine]],
        metrics: Metrics,
    ) -> None:
        self._states = states
        self._machines = machines
        self._metrics = metrics
        self._backends: dict[str, _Backend] = {}
        self._aliases: dict[str, Recent] = {}
        self._nodes: dict[str, Lines] = {}
        self._gateway = Lines(GATEWAY_SERIES)
        self._at = Series()  # Unix seconds
        self._counted = (0, 0)  # requests, and those that did not end well
        self._task: asyncio.Task[None] | None = None
        self.latest: dict[str, Any] = {"at": 0.0, "backends": {}, "aliases": {}, "nodes": {}, "gateway": {}}

    def open(self) -> None:
        self._task = self._metrics.failures.task("history", self._run)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                self.sample(time.time(), time.monotonic())
            except Exception:
                self._metrics.failures.note("history", "a sample of the fleet")
            await asyncio.sleep(EVERY)

    # -- one sample -----------------------------------------------------------------------------------------------

    def sample(self, at: float, now: float) -> None:
        """Look at everything once. `at`: Unix, `now`: monotonic seconds."""
        states = self._states()
        self._follow(states)
        self._count_first_tokens()
        completion, prompt = self._count_tokens()
        waiting = dict(self._metrics.queue_depth())
        told = {}
        for name, state in states.items():
            kept = self._backends[name]
            kept.completion.append(completion.get(name, 0.0))
            kept.prompt.append(prompt.get(name, 0.0))
            told[name] = _backend(state, kept, waiting.get(name, 0), now)
            kept.lines.append(told[name])
        self._at.append(round(at, 1))
        self.latest = {
            "at": round(at, 3),
            "backends": told,
            "aliases": {name: _first_token(recent.percentiles()) for name, recent in self._aliases.items()},
            "nodes": self._sample_nodes(),
            "gateway": self._sample_gateway(),
        }

    def _follow(self, states: Mapping[str, BackendState]) -> None:
        """Backends come and go, and one of the same name may be another one."""
        for name in self._backends.keys() - states.keys():
            del self._backends[name]
        for name, state in states.items():
            kept = self._backends.get(name)
            if kept is None or kept.identity != state.backend.identity:
                self._backends[name] = _Backend(state.backend.identity, self._recent())

    def _recent(self) -> Recent:
        return Recent(self._metrics.first_token.bounds, FIRST_TOKEN_OVER)

    def _count_first_tokens(self) -> None:
        of_backend: dict[str, list[int]] = {}
        of_alias: dict[str, list[int]] = {}
        for (alias, backend), spread in self._metrics.first_token.items():
            for name, sums in ((backend, of_backend), (alias, of_alias)):
                before = sums.get(name)
                sums[name] = spread.counts if before is None else [*map(int.__add__, before, spread.counts)]
        for alias, counts in of_alias.items():
            self._aliases.setdefault(alias, self._recent()).tick(counts)
        for name, kept in self._backends.items():
            if name in of_backend:
                kept.first_token.tick(of_backend[name])

    def _count_tokens(self) -> tuple[dict[str, float], dict[str, float]]:
        """(completion, prompt) tokens per backend since the start, cached ones left out."""
        completion: dict[str, float] = {}
        prompt: dict[str, float] = {}
        for (_, _, backend, kind), count in self._metrics.tokens.items():
            if kind == "completion":
                completion[backend] = completion.get(backend, 0.0) + count.value
            elif kind in ("prompt", "cached"):
                prompt[backend] = prompt.get(backend, 0.0) + (count.value if kind == "prompt" else -count.value)
        return completion, prompt

    def _sample_nodes(self) -> dict[str, Any]:
        machines = self._machines()
        for name in self._nodes.keys() - machines.keys():
            del self._nodes[name]
        told = {name: {key: getattr(machine, key) for key in NODE_SERIES} for name, machine in machines.items()}
        for name, values in told.items():
            self._nodes.setdefault(name, Lines(NODE_SERIES)).append(values)
        return told

    def _sample_gateway(self) -> dict[str, float | None]:
        """Requests and failures per second since the last sample."""
        every = failed = 0
        for (_, _, _, code), count in self._metrics.requests.items():
            every += count.value
            failed += 0 if code == "200" or code.startswith("client_") else count.value
        before = self._counted
        self._counted = (every, failed)
        told: dict[str, float | None] = {
            "requests": round((every - before[0]) / EVERY, 2),
            "errors": round((failed - before[1]) / EVERY, 2),
        }
        self._gateway.append(told)
        return told

    # -- for those who look ---------------------------------------------------------------------------------------

    def of_alias(self, name: str) -> dict[str, float | None]:
        """`{ttft_p50, ttft_p95}` in seconds, over the last minutes."""
        found: dict[str, float | None] = self.latest["aliases"].get(name) or _first_token(None)
        return found

    def told(self) -> Iterator[tuple[str, Any]]:
        """The last hour piece by piece, so that nobody else has to wait for all of it: ("at", [...]), ("gateway",
        {series: [...]}), then ("backends" or "nodes", (name, {series: [...]})). All lists end now."""
        yield "at", self._at.last(POINTS)
        yield "gateway", self._gateway.told()
        for name, kept in list(self._backends.items()):
            yield "backends", (name, kept.lines.told())
        for name, lines in list(self._nodes.items()):
            yield "nodes", (name, lines.told())


def _backend(state: BackendState, kept: _Backend, waiting: int, now: float) -> dict[str, Any]:
    """The numbers of one backend now; `from`: whether its rates are the engine's own or the gateway's counts."""
    engine = EngineNow()
    if state.progress is not None and state.progress.last is not None:
        kept.looks.take(state.progress.last)
        engine = kept.looks.now(now)
    own = state.progress is None
    decode, prefill = (_rate(kept.completion), _rate(kept.prompt)) if own else (engine.decode, engine.prefill)
    return {
        "from": "gateway" if own else "engine",
        "decode": _short(decode, 1),
        "prefill": _short(prefill, 1),
        "kv": _short(engine.kv, 4),
        "prefix_hits": _short(engine.prefix_hits, 4),
        "accepted": [round(share, 3) for share in engine.accepted],
        **_first_token(kept.first_token.percentiles()),
        "inflight": state.inflight,
        "foreign": state.foreign,
        "elsewhere": state.elsewhere,
        "queue": waiting,
    }


def _first_token(percentiles: Percentiles | None) -> dict[str, float | None]:
    if percentiles is None:
        return {"ttft_p50": None, "ttft_p95": None}
    return {"ttft_p50": _short(percentiles.p50, 4), "ttft_p95": _short(percentiles.p95, 4)}


def _rate(counts: Series) -> float:
    """Tokens per second over the last TOKENS_OVER samples."""
    last = counts.last(TOKENS_OVER + 1)
    return max(0.0, last[-1] - last[0]) / EVERY / (len(last) - 1) if len(last) > 1 else 0.0


def _short(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
