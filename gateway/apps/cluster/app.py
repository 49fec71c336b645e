"""Several gateways in front of one fleet, as an app of a gateway."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import Metric

from gateway.domain.backend import BackendState
from gateway.observe.gauges import ScrapedMetrics, counter, gauge
from gateway.runtime.apps import Extension
from gateway.runtime.gateway import Gateway

if TYPE_CHECKING:
    from gateway.apps.cluster.membership import Membership


def app(gateway: Gateway) -> Extension:
    url, shared = gateway.snapshot.server.shared, None
    if url is not None:
        from gateway.apps.cluster.membership import Membership

        gateway.shared = shared = Membership(gateway, url)
    gateway.metrics.registry.register(ScrapedMetrics(lambda: metrics_of(shared, gateway.fleet.states)))
    return Extension()


def metrics_of(shared: Membership | None, states: Mapping[str, BackendState]) -> Iterator[Metric]:
    """Empty without `server.shared`."""
    ours, known = ([shared], states) if shared is not None else ([], {})
    joined = "1 while the gateways decide together, 0 while Redis is away"
    yield gauge("gateway_shared_joined", joined, rows=[((), one.joined) for one in ours])
    count = "Gateways in front of the fleet, as last seen"
    yield gauge("gateway_shared_gateways", count, rows=[((), one.gateways) for one in ours])
    yield counter("gateway_shared_away_total", "Times that Redis went away", rows=[((), m.times_away) for m in ours])
    yield counter("gateway_shared_trips_total", "Round trips to Redis", rows=[((), one.trips) for one in ours])
    elsewhere = (((name,), state.shared.elsewhere) for name, state in known.items())
    yield gauge("gateway_elsewhere", "Sequences that other gateways have under way", "backend", elsewhere)
    limited = [(name, state, state.known_slots) for name, state in known.items()]
    over = (((name,), max(0, one.under_way + one.foreign - slots) if slots else 0) for name, one, slots in limited)
    yield gauge("gateway_slots_excess", "Sequences beyond a backend's slots", "backend", over)
