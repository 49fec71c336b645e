"""The Prometheus metrics that are counted when the event happens; observe/gauges.py has those that are read at a
scrape. Label values come from routes.yaml or from fixed lists, never from a client's text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import astuple
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from gateway.config.snapshot import OPEN
from gateway.domain.tokens import Tokens
from gateway.supervision import Failures

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_GAPS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 20, 60)


class Metrics:
    """All metrics of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._families: list[MetricFamily] = []
        ProcessCollector(registry=self.registry)
        self.requests = self._family(
            "gateway_requests_total",
            "Requests by outcome: the HTTP status of an answer, or the error code, or client_gone",
            "alias backend endpoint code",
        )
        self.attempts = self._family("gateway_attempts_total", "Attempts by outcome", "backend outcome")
        self.failovers = self._family(
            "gateway_failovers_total", "Attempts on a further backend, by why the one before was left", "alias reason"
        )
        self.resumed = self._family(
            "gateway_resumed_total", "Streams that broke after content and went on at this backend", "alias backend"
        )
        self.batch_lines = self._family("gateway_batch_lines_total", "Lines of batches by result", "result")
        self.queue_seconds = self._family("gateway_queue_seconds", "Seconds waited for a slot", "", _SECONDS)
        self.first_token = self._family(
            "gateway_time_to_first_token_seconds",
            "Seconds from the request to the first content sent",
            "alias backend",
            _SECONDS,
        )
        self.inter_token = self._family(
            "gateway_inter_token_seconds", "Seconds between two arrivals in a stream", "backend", _GAPS
        )
        self.request_seconds = self._family(
            "gateway_request_seconds", "Seconds from the request to its end", "", _SECONDS
        )
        self.tokens = self._family(
            "gateway_tokens_total",
            "Tokens that backends reported: prompt, completion, cached, reasoning",
            "client alias backend kind",
        )
        self.audio_seconds = self._family(
            "gateway_audio_seconds_total",
            "Seconds of speech that was transcribed, translated or spoken, as far as they are known",
            "client alias backend endpoint",
        )
        self.violations = self._family(
            "gateway_violations_total", "Answers that were not what was asked for", "backend kind"
        )
        self.mended = self._family(
            "gateway_mended_total", "Answers in which calls or thoughts were put where they belong", "backend kind"
        )
        self.adapted = self._family("gateway_adapted_total", "Requests that were changed to be served", "alias kind")
        self.transitions = self._family(
            "gateway_backend_transitions_total", "Changes of a backend's state", "backend after"
        )
        self.cloud_usd = self._family(
            "gateway_cloud_usd_total", "USD that clouds have cost, by declared or known prices", "backend client"
        )
        self.reloads = self._family("gateway_config_reloads_total", "Times that routes.yaml was read again", "result")
        self.switches = self._family("gateway_switches_total", "Switches of the mode, by how they ended", "result")
        self.starts = self._family(
            "gateway_requested_starts_total", "Starts of a backend for a request, by how they ended", "backend result"
        )
        self.stops = self._family(
            "gateway_requested_stops_total",
            "Stops of a backend with `run: on_request`: evicted for another one, idle, or after a failed start",
            "backend reason",
        )
        self.internal_failures = self._family(
            "gateway_internal_failures_total",
            "Times that a part of the gateway itself failed and was restarted",
            "part",
        )
        self.failures = Failures(self.internal_failures)
        self.connections_closed = self._family(
            "gateway_connections_closed_total", "Connections that the listener has closed or refused, by why", "reason"
        )
        self.open_connections = MetricValue()  # kept by the listener
        self.shortages = self._family(
            "gateway_shortages_total",
            "Times that the gateway lacked something: files, memory, ports, threads, disk, budget (`server.memory`)",
            "kind",
        )
        self.seconds: Histogram = self.request_seconds.child()
        self._routes: dict[tuple[str, str, str, str], Route] = {}

    def _family(self, name: str, meaning: str, labels: str, bounds: tuple[float, ...] | None = None) -> MetricFamily:
        family = MetricFamily(name, meaning, labels.split(), bounds)
        self.registry.register(family)
        self._families.append(family)
        return family

    def route(self, client: str, alias: str, backend: str, endpoint: str) -> Route:
        """The counters for requests of this client, alias, backend and endpoint."""
        key = (client, alias, backend, endpoint)
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = Route(self, *key)
        return route

    def keep(self, **names: Iterable[str]) -> None:
        """Drop the series of every `backend`, `alias` or `client` that is not among these names."""
        for label, values in names.items():
            kept = {"", OPEN, *values}
            for family in self._families:
                family.keep(label, kept)
        self._routes.clear()


class Route:
    """The counters of one (client, alias, backend, endpoint), looked up once."""

    __slots__ = ("_tokens", "answered", "attempt_ok", "first_token", "inter_token")

    def __init__(self, metrics: Metrics, client: str, alias: str, backend: str, endpoint: str) -> None:
        self.answered: MetricValue = metrics.requests.child(alias, backend, endpoint, "200")
        self.attempt_ok: MetricValue = metrics.attempts.child(backend, "ok")
        self.first_token: Histogram = metrics.first_token.child(alias, backend)
        self.inter_token: Histogram = metrics.inter_token.child(backend)
        kinds = Tokens.__struct_fields__  # prompt, completion, cached, reasoning
        self._tokens: list[MetricValue] = [metrics.tokens.child(client, alias, backend, kind) for kind in kinds]

    def count_tokens(self, used: Tokens) -> None:
        for count, tokens in zip(self._tokens, astuple(used), strict=True):
            if tokens:
                count.value += tokens


# -- counters and histograms -------------------------------------------------------------------------------------------
# Plain attributes, converted to Prometheus' form at a scrape. `prometheus_client`'s own children take a lock and some
# checks per observation, a tenth of the gateway's cost at eight observations per request (docs/performance.md). Here
# one thread writes, so that no lock is needed.


class MetricValue:
    """A counter, or a gauge: change `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Histogram:
    """A histogram. `bounds`: upper bounds, ascending; `counts`: observations per bucket, the last beyond all bounds."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, cumulative count), as Prometheus writes them."""
        result = []
        seen = 0
        for bound, count in zip((*map(str, map(float, self._bounds)), "+Inf"), self.counts, strict=True):
            seen += count
            result.append((bound, float(seen)))
        return result


class MetricFamily(Collector):
    """One metric with labels; `child` returns the `MetricValue` or `Histogram` of a set of label values."""

    def __init__(self, name: str, meaning: str, labels: Sequence[str], bounds: Sequence[float] | None = None) -> None:
        self.name = name
        self._meaning = meaning
        self._labels = labels
        self._bounds = bounds
        self._children: dict[tuple[str, ...], Any] = {}

    def child(self, *values: str) -> Any:
        found = self._children.get(values)
        if found is None:
            found = self._children[values] = MetricValue() if self._bounds is None else Histogram(self._bounds)
        return found

    @property
    def bounds(self) -> Sequence[float]:
        """The upper bounds of a histogram; empty for a counter."""
        return self._bounds or ()

    def items(self) -> Iterable[tuple[tuple[str, ...], Any]]:
        """(label values, `MetricValue` or `Histogram`) of all children."""
        return self._children.items()

    def inc(self, *values: str) -> None:
        """Add one, where counting is too rare to keep the child."""
        self.child(*values).value += 1

    def keep(self, label: str, values: Container[str]) -> None:
        """Drop the children with another value of `label`, where the family has that label."""
        if label in self._labels:
            at = self._labels.index(label)
            self._children = {key: child for key, child in self._children.items() if key[at] in values}

    def describe(self) -> Iterable[CounterMetricFamily | HistogramMetricFamily]:
        return (self._family(),)

    def _family(self) -> CounterMetricFamily | HistogramMetricFamily:
        kind = CounterMetricFamily if self._bounds is None else HistogramMetricFamily
        return kind(self.name, self._meaning, labels=self._labels)

    def collect(self) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
        family = self._family()
        for values, child in self._children.items():
            if isinstance(family, HistogramMetricFamily):
                family.add_metric(values, child.buckets(), child.total)
            else:
                family.add_metric(values, child.value)
        yield family
