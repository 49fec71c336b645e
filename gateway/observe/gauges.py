"""Metrics that are read at a scrape: the states of backends, aliases and the gateway itself. Label values are names of
routes.yaml and words of fixed lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.domain.health_state import SERVING, State
from gateway.routing.alias_status import AWAY, AliasStatusTracker, BackendView, Course

if TYPE_CHECKING:
    from gateway.domain.backend import BackendState
    from gateway.health.nodes import Machine

COURSES: tuple[str, ...] = get_args(Course)
Rows = Iterable[tuple[tuple[str, ...], float]]
"""(label values, value) of each series of a metric."""


def _loaded(state: BackendState, _: BackendView) -> float | None:
    return None if state.reported.loaded is None else float(state.reported.loaded)


def _held_bytes(state: BackendState, _: BackendView) -> float | None:
    return None if state.held is None else state.held.bytes or None


def _kv(state: BackendState, view: BackendView) -> float | None:
    return state.progress.last.kv if view.state in SERVING and state.progress.last is not None else None


_BACKENDS: Mapping[str, tuple[str, Callable[[BackendState, BackendView], float | None]]] = {
    "gateway_inflight": ("Sequences under way", lambda state, _: state.inflight),
    "gateway_slots": (
        "Sequences that may be under way at a time; without a limit left out",
        lambda state, _: state.known_slots,
    ),
    "gateway_foreign_sequences": ("Sequences that others run there", lambda state, _: state.foreign),
    "gateway_backend_up": ("1 while requests are sent there", lambda _, view: view.serves),
    "gateway_backend_drift": ("Differences from routes.yaml", lambda _, view: len(view.drift)),
    "gateway_backend_model_loaded": ("1 while a server that loads on demand holds the model in memory", _loaded),
    "gateway_backend_model_bytes": ("Memory of that model, as the server says", _held_bytes),
    "gateway_kv_cache_usage_ratio": ("Share of the KV cache in use, as the engine says", _kv),
}
# What engines count is passed on as it is: `rate` makes shares of any window of it, and sums over backends.
_COUNTED = {
    "gateway_backend_drafts_total": ("drafts", "Drafts of speculative decoding, as the engine counts"),
    "gateway_backend_draft_tokens_total": ("drafted_tokens", "Tokens that speculative decoding drafted"),
    "gateway_backend_accepted_tokens_total": ("accepted_tokens", "Drafted tokens that were accepted"),
    "gateway_backend_prefix_cache_queries_total": ("queries", "Prompt tokens looked up in the engine's prefix cache"),
    "gateway_backend_prefix_cache_hits_total": ("hits", "Prompt tokens found in the engine's prefix cache"),
}
_OF_DRAFTS = frozenset({"drafts", "drafted_tokens", "accepted_tokens"})

_NODES = {
    "gateway_node_memory_used_bytes": ("memory_used", "Memory in use, as the node's exporter says"),
    "gateway_node_memory_total_bytes": ("memory_total", "Memory of the node, as its exporter says"),
    "gateway_node_temperature_celsius": ("temperature", "The hottest of the node's GPUs or sensors"),
    "gateway_node_power_watts": ("power", "Power that the node's GPUs draw"),
    "gateway_node_gpu_ratio": ("gpu", "Share of time in which the node's GPU works"),
}


class ScrapedMetrics(Collector):
    """The metrics that a function makes at each scrape."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()


def gauge(name: str, meaning: str, labels: str = "", rows: Rows = ()) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=labels.split())
    for values, value in rows:
        family.add_metric(values, float(value))
    return family


def counter(name: str, meaning: str, labels: str = "", rows: Rows = ()) -> Metric:
    family = CounterMetricFamily(name, meaning, labels=labels.split())
    for values, value in rows:
        family.add_metric(values, value)
    return family


def backend_metrics(
    states: Mapping[str, BackendState], status: AliasStatusTracker, waiting: Mapping[str, int]
) -> Iterator[Metric]:
    """`waiting`: backend -> requests in its queue. What is not known of a backend is left out."""
    status.look()
    here = [(name, state, status.backends[name]) for name, state in states.items()]
    for metric, (meaning, value) in _BACKENDS.items():
        values = [((name,), value(state, view)) for name, state, view in here]
        yield gauge(metric, meaning, "backend", [(labels, found) for labels, found in values if found is not None])
    why = [((name, state.slots_why), 1.0) for name, state, _ in here if state.known_slots is not None]
    yield gauge("gateway_slots_reason", "1 for where the number of its slots comes from", "backend reason", why)
    queued = (((name,), waiting.get(name, 0)) for name in states)
    yield gauge("gateway_queue_depth", "Requests that wait for a slot", "backend", queued)
    known = (((name, one.value), state.health.state is one) for name, state, _ in here for one in State)
    yield gauge("gateway_backend_state", "1 for the state a backend is in", "backend state", known)
    seen = [(name, check, one.result) for name, state, _ in here for check, one in state.facts.observed.items()]
    passed = (((name, check), result != "no") for name, check, result in seen if result != "untested")
    yield gauge("gateway_canary", "1 where a check was passed, 0 not", "backend check", passed)


def engine_metrics(states: Mapping[str, BackendState]) -> Iterator[Metric]:
    """The engines' counters of drafts and of their prefix cache; left out until an engine was looked at, so that a
    gateway that restarts makes no jump from 0."""
    samples = [(name, state.progress.last) for name, state in states.items() if state.progress.last is not None]
    for metric, (key, meaning) in _COUNTED.items():
        shown = [(name, one) for name, one in samples if key not in _OF_DRAFTS or one.accepted or one.drafts]
        yield counter(metric, meaning, "backend", (((name,), getattr(one, key)) for name, one in shown))
    yield counter(
        "gateway_backend_accepted_position_tokens_total",
        "Drafted tokens that were accepted, by position in the draft, from 0",
        "backend position",
        (((name, str(at)), accepted) for name, one in samples for at, accepted in enumerate(one.accepted)),
    )


def node_metrics(machines: Mapping[str, Machine]) -> Iterator[Metric]:
    """The last reports of the nodes' exporters; a figure that one does not report is left out."""
    up = (((node,), machine.there) for node, machine in machines.items())
    yield gauge("gateway_node_exporter_up", "1 while the node's exporter answers", "node", up)
    for metric, (key, meaning) in _NODES.items():
        values = [((node,), getattr(machine, key)) for node, machine in machines.items()]
        yield gauge(metric, meaning, "node", (row for row in values if row[1] is not None))


def alias_metrics(status: AliasStatusTracker) -> Iterator[Metric]:
    """Every alias: its course, and for how long another step than the first has served it."""
    status.look()
    aliases = status.aliases.values()
    yield gauge(
        "gateway_alias_on_fallback",
        "1 while a later step serves the alias because of health",
        "alias",
        (((alias.name,), alias.course in AWAY) for alias in aliases),
    )
    courses = (((alias.name, course), alias.course == course) for alias in aliases for course in COURSES)
    yield gauge("gateway_alias_course", "1 for the course an alias is on", "alias course", courses)
    away = [(alias.name, course) for alias in aliases for course in sorted(AWAY)]
    yield counter(
        "gateway_alias_fallback_seconds_total",
        "Seconds for which a later step has served the alias because of health",
        "alias course",
        ((key, status.away.get(key, 0.0)) for key in away),
    )
