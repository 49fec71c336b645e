"""Metrics that are read at a scrape: the states of backends, aliases and the gateway itself. Label values are names of
routes.yaml and words of fixed lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.domain.health_state import SERVING, State
from gateway.routing.alias_status import AWAY, AliasStatusTracker, BackendView, Course

if TYPE_CHECKING:
    from gateway.admission.memory import Memory
    from gateway.config.snapshot import Snapshot
    from gateway.domain.backend import BackendState
    from gateway.domain.fleet import Fleet
    from gateway.health.nodes import Machine

COURSES: tuple[str, ...] = get_args(Course)


_BACKENDS = {
    "gateway_inflight": "Sequences under way",
    "gateway_slots": "Sequences that may be under way at a time; without a limit left out",
    "gateway_foreign_sequences": "Sequences that others run there",
    "gateway_queue_depth": "Requests that wait for a slot",
    "gateway_backend_up": "1 while requests are sent there",
    "gateway_backend_drift": "Differences from routes.yaml",
    "gateway_kv_cache_usage_ratio": "Share of the KV cache in use, as the engine says",
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


def gauge(name: str, meaning: str, labels: str = "") -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=labels.split())


class BackendCollector(Collector):
    """Every backend of the fleet; `waiting`: backend -> requests in its queue."""

    def __init__(self, fleet: Fleet, status: AliasStatusTracker, waiting: Callable[[], Mapping[str, int]]) -> None:
        self._fleet = fleet
        self._status = status
        self._waiting = waiting

    def collect(self) -> Iterator[Metric]:
        waiting = self._waiting()
        self._status.look()
        gauges = {name: gauge(name, meaning, "backend") for name, meaning in _BACKENDS.items()}
        states = gauge("gateway_backend_state", "1 for the state a backend is in", "backend state")
        canary = gauge("gateway_canary", "1 where a check was passed, 0 not", "backend check")
        for name, state in self._fleet.states.items():
            for metric, value in _values(state, self._status.backends[name], waiting.get(name, 0)).items():
                gauges[metric].add_metric([name], value)
            for known in State:
                states.add_metric([name, known.value], float(state.health.state is known))
            for check, seen in state.facts.observed.items():
                if seen.result != "untested":
                    canary.add_metric([name, check], float(seen.result != "no"))
        yield from gauges.values()
        yield states
        yield canary


def _values(state: BackendState, view: BackendView, waiting: int) -> dict[str, float]:
    """The values of a backend by names of _BACKENDS; unknown ones are left out."""
    values: dict[str, float] = {
        "gateway_inflight": state.inflight,
        "gateway_foreign_sequences": state.foreign,
        "gateway_queue_depth": waiting,
        "gateway_backend_up": float(view.serves),
        "gateway_backend_drift": len(view.drift),
    }
    if state.known_slots is not None:
        values["gateway_slots"] = state.known_slots
    if view.state in SERVING and state.progress.last is not None:
        values["gateway_kv_cache_usage_ratio"] = state.progress.last.kv
    return values


class EngineCollector(Collector):
    """The engines' counters of drafts and of their prefix cache; left out until an engine was looked at, so that a
    gateway that restarts makes no jump from 0."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        counters = {
            name: CounterMetricFamily(name, meaning, labels=("backend",)) for name, (_, meaning) in _COUNTED.items()
        }
        positions = CounterMetricFamily(
            "gateway_backend_accepted_position_tokens_total",
            "Drafted tokens that were accepted, by position in the draft, from 0",
            labels=("backend", "position"),
        )
        for name, state in self._fleet.states.items():
            last = state.progress.last
            if last is None:
                continue
            for metric, (key, _) in _COUNTED.items():
                if key not in _OF_DRAFTS or last.accepted or last.drafts:
                    counters[metric].add_metric([name], getattr(last, key))
            for position, accepted in enumerate(last.accepted):
                positions.add_metric([name, str(position)], accepted)
        yield from counters.values()
        yield positions


class NodeCollector(Collector):
    """The last reports of the nodes' exporters; a figure that one does not report is left out."""

    def __init__(self, machines: Callable[[], Mapping[str, Machine]]) -> None:
        self._machines = machines

    def collect(self) -> Iterator[Metric]:
        up = gauge("gateway_node_exporter_up", "1 while the node's exporter answers", "node")
        gauges = {name: gauge(name, meaning, "node") for name, (_, meaning) in _NODES.items()}
        for node, machine in self._machines().items():
            up.add_metric([node], float(machine.there))
            for metric, (key, _) in _NODES.items():
                value = getattr(machine, key)
                if value is not None:
                    gauges[metric].add_metric([node], value)
        yield up
        yield from gauges.values()


class AliasCollector(Collector):
    """Every alias: its course, and for how long another step than the first has served it."""

    def __init__(self, status: AliasStatusTracker) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        on_fallback = gauge(
            "gateway_alias_on_fallback", "1 while a later step serves the alias because of health", "alias"
        )
        courses = gauge("gateway_alias_course", "1 for the course an alias is on", "alias course")
        seconds = CounterMetricFamily(
            "gateway_alias_fallback_seconds_total",
            "Seconds for which a later step has served the alias because of health",
            labels=("alias", "course"),
        )
        self._status.look()
        for alias in self._status.aliases.values():
            on_fallback.add_metric([alias.name], float(alias.course in AWAY))
            for course in COURSES:
                courses.add_metric([alias.name, course], float(alias.course == course))
            for course in sorted(AWAY):
                seconds.add_metric([alias.name, course], self._status.away.get((alias.name, course), 0.0))
        yield on_fallback
        yield courses
        yield seconds


class GatewayCollector(Collector):
    """The gateway itself. `budgets`: name -> share that is spent (1 = all); `lost`: kind of record -> how many were
    dropped; `valid`: whether the present routes.yaml is in force; `connections`: how many are open."""

    def __init__(
        self,
        budgets: Callable[[], Mapping[str, float]],
        lost: Callable[[], Mapping[str, int]],
        valid: Callable[[], bool],
        connections: Callable[[], int],
    ) -> None:
        self._connections = connections
        self._budgets = budgets
        self._lost = lost
        self._valid = valid

    def collect(self) -> Iterator[Metric]:
        build = gauge("gateway_build_info", "1; the version that runs", "version")
        build.add_metric([__version__], 1.0)
        yield build
        valid = gauge("gateway_config_valid", "1 while routes.yaml as it is now is in force")
        valid.add_metric([], float(self._valid()))
        yield valid
        connections = gauge("gateway_connections", "Connections of clients that are open")
        connections.add_metric([], self._connections())
        yield connections
        budgets = gauge("gateway_budget_spent_ratio", "Share of a budget that is spent", "budget")
        for name, share in self._budgets().items():
            budgets.add_metric([name], share)
        yield budgets
        lost = CounterMetricFamily(
            "gateway_records_lost_total", "Records given up because nobody took them", labels=("kind",)
        )
        for kind, count in self._lost().items():
            lost.add_metric([kind], count)
        yield lost


class ModeCollector(Collector):
    """The modes of routes.yaml; empty without modes."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        in_force = gauge("gateway_mode", "1 for the mode in force", "mode")
        snapshot = self._snapshot()
        for name in snapshot.modes:
            in_force.add_metric([name], float(name == snapshot.mode))
        yield in_force


class MemoryCollector(Collector):
    """The memory of `server.memory` that requests and answers hold."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def collect(self) -> Iterator[Metric]:
        used = gauge("gateway_memory_bytes", "Bytes of request bodies and whole answers that are held")
        used.add_metric([], float(self._memory.used))
        yield used
        limit = gauge("gateway_memory_limit_bytes", "Bytes of them that may be held; without a bound left out")
        if self._memory.limit is not None:
            limit.add_metric([], float(self._memory.limit))
        yield limit


class SharedFleet(Protocol):
    """The common knowledge of several gateways in front of one fleet (cluster/membership.py)."""

    times_away: int

    @property
    def joined(self) -> bool: ...

    @property
    def gateways(self) -> int: ...

    @property
    def trips(self) -> int: ...


class SharedCollector(Collector):
    """Several gateways in front of one fleet; empty without `server.shared`."""

    def __init__(self, gateways: SharedFleet | None, fleet: Fleet) -> None:
        self._gateways = gateways
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        joined = gauge("gateway_shared_joined", "1 while the gateways decide together, 0 while Redis is away")
        count = gauge("gateway_shared_gateways", "Gateways in front of the fleet, as last seen")
        away = CounterMetricFamily("gateway_shared_away_total", "Times that Redis went away")
        trips = CounterMetricFamily("gateway_shared_trips_total", "Round trips to Redis")
        elsewhere = gauge("gateway_elsewhere", "Sequences that other gateways have under way", "backend")
        over = gauge("gateway_slots_excess", "Sequences beyond a backend's slots", "backend")
        if self._gateways is not None:
            joined.add_metric([], float(self._gateways.joined))
            count.add_metric([], self._gateways.gateways)
            away.add_metric([], self._gateways.times_away)
            trips.add_metric([], self._gateways.trips)
            for name, state in self._fleet.states.items():
                elsewhere.add_metric([name], state.shared.elsewhere)
                over.add_metric([name], excess(state))
        yield from (joined, count, away, trips, elsewhere, over)


def excess(state: BackendState) -> int:
    """Known sequences on the backend beyond its slots."""
    if state.known_slots is None:
        return 0
    return max(0, state.under_way + state.foreign - state.known_slots)
