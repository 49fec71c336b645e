"""The Prometheus metrics that are counted when the event happens; observe/gauges.py has those that are read at a
scrape. Label values come from routes.yaml or from fixed lists, never from a client's text."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import astuple
from prometheus_client import CollectorRegistry, ProcessCollector

from gateway.config.snapshot import OPEN
from gateway.domain.usage import Tokens
from gateway.metrics.counters import Histogram, MetricFamily, MetricValue
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
