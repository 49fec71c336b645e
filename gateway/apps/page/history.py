"""Figures of the last hour for the page and `/status/history`: sampled every few seconds from counters and states that
exist anyway, kept in memory, off the request path."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import nan
from typing import Any

from gateway.apps.page.rates import EngineRates, EngineSamples, HistogramWindow, Percentiles
from gateway.domain.backend import BackendState
from gateway.health.nodes import Machine
from gateway.metrics.registry import Metrics
from gateway.supervision import cancel

EVERY = 5.0  # seconds between two samples
POINTS = 720  # samples that are kept: an hour
FIRST_TOKEN_OVER = 60  # samples in the percentiles of the time to first token: five minutes
TOKENS_OVER = 12  # samples in a rate of our own token counts, which rise only when an answer ends

BACKEND_SERIES = ("decode", "prefill", "kv", "prefix_hits", "ttft_p50", "ttft_p95", "inflight", "queue")
NODE_SERIES = ("memory_used", "temperature", "power", "gpu")
GATEWAY_SERIES = ("requests", "errors")


class Series:
    """The last POINTS values of one figure; NaN = not known."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values = array("d")

    def append(self, value: float | None) -> None:
        self._values.append(nan if value is None else value)
        if len(self._values) >= 2 * POINTS:
            del self._values[:-POINTS]

    def last(self, count: int, newer: int = 0) -> list[float]:
        """The last `count` values before the newest `newer`."""
        end = max(0, len(self._values) - newer)
        return self._values[max(0, end - count) : end].tolist()


class SeriesGroup:
    """Several series that are sampled together, by name."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._series = {name: Series() for name in names}

    def append(self, values: Mapping[str, float | None]) -> None:
        for name, series in self._series.items():
            series.append(values.get(name))

    def known(self, newer: int = 0) -> dict[str, list[float]]:
        """The series with a known value before the newest `newer`. All end there: a younger one is shorter."""
        found = ((name, series.last(POINTS, newer)) for name, series in self._series.items())
        return {name: values for name, values in found if any(value == value for value in values)}  # NaN is not itself


@dataclass(slots=True)
class _Backend:
    """One backend's series, and the previous readings that its next sample needs."""

    identity: object
    first_token: HistogramWindow
    lines: SeriesGroup = field(default_factory=lambda: SeriesGroup(BACKEND_SERIES))
    samples: EngineSamples = field(default_factory=EngineSamples)
    completion: Series = field(default_factory=Series)
    prompt: Series = field(default_factory=Series)
    acceptance: float | None = None  # share of draft tokens, of its latest sample


class History:
    """Samples the fleet every EVERY seconds. `waiting`: backend -> requests in its queue. `latest`: the newest sample,
    as `/events` sends it."""

    def __init__(
        self,
        states: Callable[[], Mapping[str, BackendState]],
        machines: Callable[[], Mapping[str, Machine]],
        waiting: Callable[[], Mapping[str, int]],
        metrics: Metrics,
    ) -> None:
        self._states = states
        self._machines = machines
        self._waiting = waiting
        self._metrics = metrics
        self._backends: dict[str, _Backend] = {}
        self._aliases: dict[str, HistogramWindow] = {}
        self._nodes: dict[str, SeriesGroup] = {}
        self._gateway = SeriesGroup(GATEWAY_SERIES)
        self._at = Series()  # Unix seconds
        self._taken = 0  # samples since the start
        self._counted = (0, 0)  # (requests, failures) since the start
        self._task: asyncio.Task[None] | None = None
        self.latest: dict[str, Any] = {"at": 0.0, "backends": {}, "aliases": {}, "nodes": {}, "gateway": {}}

    async def open(self) -> None:
        self._task = self._metrics.failures.task("history", self._run)

    async def close(self) -> None:
        await cancel(self._task)

    async def _run(self) -> None:
        while True:
            try:
                self.sample(time.time(), time.monotonic())
            except Exception:
                self._metrics.failures.note("history", "a sample of the fleet")
            await asyncio.sleep(EVERY)

    # -- one sample -----------------------------------------------------------------------------------------------

    def sample(self, at: float, now: float) -> None:
        """Take one sample of everything. `at`: Unix, `now`: monotonic seconds."""
        states = self._states()
        self._follow(states)
        self._count_first_tokens()
        completion, prompt = self._count_tokens()
        waiting = self._waiting()
        sampled = {}
        for name, state in states.items():
            kept = self._backends[name]
            kept.completion.append(completion.get(name, 0.0))
            kept.prompt.append(prompt.get(name, 0.0))
            sampled[name] = _backend(state, kept, waiting.get(name, 0), now)
            kept.lines.append(sampled[name])
        self._at.append(round(at, 1))
        self._taken += 1
        self.latest = {
            "at": round(at, 3),
            "backends": sampled,
            "aliases": {name: _first_token(recent.percentiles()) for name, recent in self._aliases.items()},
            "nodes": self._sample_nodes(),
            "gateway": self._sample_gateway(),
        }

    def _follow(self, states: Mapping[str, BackendState]) -> None:
        """Forget removed backends, and start new series for a name that belongs to another backend now."""
        for name in self._backends.keys() - states.keys():
            del self._backends[name]
        for name, state in states.items():
            kept = self._backends.get(name)
            if kept is None or kept.identity != state.backend.identity:
                self._backends[name] = _Backend(state.backend.identity, self._recent())

    def _recent(self) -> HistogramWindow:
        return HistogramWindow(self._metrics.first_token.bounds, FIRST_TOKEN_OVER)

    def _count_first_tokens(self) -> None:
        of_backend: dict[str, list[int]] = {}
        of_alias: dict[str, list[int]] = {}
        for (alias, backend), histogram in self._metrics.first_token.items():
            for name, sums in ((backend, of_backend), (alias, of_alias)):
                before = sums.get(name)
                sums[name] = histogram.counts if before is None else [*map(int.__add__, before, histogram.counts)]
        for alias, counts in of_alias.items():
            self._aliases.setdefault(alias, self._recent()).tick(counts)
        for name, kept in self._backends.items():
            if name in of_backend:
                kept.first_token.tick(of_backend[name])

    def _count_tokens(self) -> tuple[dict[str, float], dict[str, float]]:
        """Tokens per backend since the start: (completion, prompt without cached)."""
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
        sampled = {name: {key: getattr(machine, key) for key in NODE_SERIES} for name, machine in machines.items()}
        for name, values in sampled.items():
            self._nodes.setdefault(name, SeriesGroup(NODE_SERIES)).append(values)
        return sampled

    def _sample_gateway(self) -> dict[str, float | None]:
        """Requests and failures per second since the last sample."""
        every = failed = 0
        for (_, _, _, code), count in self._metrics.requests.items():
            every += count.value
            failed += 0 if code == "200" or code.startswith("client_") else count.value
        before = self._counted
        self._counted = (every, failed)
        sampled: dict[str, float | None] = {
            "requests": round((every - before[0]) / EVERY, 2),
            "errors": round((failed - before[1]) / EVERY, 2),
        }
        self._gateway.append(sampled)
        return sampled

    # -- for readers ----------------------------------------------------------------------------------------------

    def acceptance(self) -> dict[str, float]:
        """Backend -> share of draft tokens that were accepted over the last minutes; only those that draft."""
        return {name: kept.acceptance for name, kept in self._backends.items() if kept.acceptance is not None}

    def of_alias(self, name: str) -> dict[str, float | None]:
        """`{ttft_p50, ttft_p95}` in seconds, over the last minutes."""
        found: dict[str, float | None] = self.latest["aliases"].get(name) or _first_token(None)
        return found

    def parts(self) -> Iterator[tuple[str, Any]]:
        """The last hour in parts, so that the caller can yield to other tasks in between: ("at", [Unix seconds]),
        ("gateway", {series: [...]}), then ("backends" or "nodes", (name, {series: [...]})). All lists end with the
        sample that is the newest at the beginning, whatever is sampled meanwhile."""
        told = self._taken
        yield "at", self._at.last(POINTS)
        yield "gateway", self._gateway.known(self._taken - told)
        for name, kept in list(self._backends.items()):
            yield "backends", (name, kept.lines.known(self._taken - told))
        for name, lines in list(self._nodes.items()):
            yield "nodes", (name, lines.known(self._taken - told))


def _backend(state: BackendState, kept: _Backend, waiting: int, now: float) -> dict[str, Any]:
    """The numbers of one backend now; `from`: whether its rates are the engine's own or the gateway's counts."""
    engine = EngineRates()
    if state.progress.last is not None:
        kept.samples.add(state.progress.last)
        engine = kept.samples.rates(now)
    kept.acceptance = engine.acceptance
    own = state.progress.last is None
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
        "elsewhere": state.shared.elsewhere,
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
