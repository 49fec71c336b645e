"""Endpoints for operators and their tools: liveness, readiness, version and metrics."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from gateway import __version__
from gateway.admission.access import Caller, Identity
from gateway.admission.origins import check_source
from gateway.api.caller import Page, PageAnswer, admit, identify_caller, json_answer
from gateway.config.snapshot import Alias
from gateway.errors import GatewayError
from gateway.large_bodies import apart
from gateway.routing.serving import can_serve
from gateway.runtime.gateway import Gateway


def pages(gateway: Gateway) -> dict[str, Page]:
    """`/health`, `/ready`, `/version`, `/metrics`, from memory; open but for the parts that name aliases."""

    def known(caller: Caller) -> Identity | None:
        """The caller; None for a caller who may not see the aliases."""
        try:
            return identify_caller(gateway, caller)
        except GatewayError:
            return None

    async def health(_: Caller) -> PageAnswer:
        return json_answer({"status": "ok"})

    async def ready(caller: Caller) -> PageAnswer:
        """200 while some alias can be served and the gateway is not stopping, else 503. Names those aliases, and those
        that nobody serves now, to callers who may use them."""
        if gateway.stopping:
            return json_answer({"status": "stopping"}, 503)
        serving = servable(gateway, time.monotonic())
        answer: dict[str, Any] = {"status": "ready" if serving else "no backend"}
        if gateway.refused_edit is not None:
            answer["config"] = "routes.yaml has a mistake: its last good version is served"
        identity = known(caller)
        if identity is not None:
            known_to = [alias for alias in gateway.snapshot.aliases.values() if identity.may_use(alias)]
            served = {alias.name for alias in serving}
            answer["aliases"] = [alias.name for alias in known_to if alias.name in served]
            answer["unserved"] = [alias.name for alias in known_to if alias.name not in served]
        return json_answer(answer, 200 if serving else 503)

    async def version(_: Caller) -> PageAnswer:
        return json_answer({"version": __version__})

    async def metrics(caller: Caller) -> PageAnswer:
        """Prometheus' text, or OpenMetrics for a scraper that accepts it; with `server.metrics` for admins only."""
        if gateway.snapshot.metrics_are_open:
            check_source(gateway.snapshot, caller.headers)
        else:
            admit(gateway, caller, "/metrics")
        encode, content_type = choose_encoder(caller.headers.get(b"accept", b"").decode("latin-1"))
        # Thousands of series take long to write: the figures are taken now, and written beside other requests.
        families = list(gateway.metrics.registry.collect())
        taken = cast(CollectorRegistry, SimpleNamespace(collect=lambda: families))
        page = await apart(caller.sender, lambda: encode(taken))
        return PageAnswer(page, content_type=content_type)

    return {"/health": health, "/ready": ready, "/version": version, "/metrics": metrics}


def servable(gateway: Gateway, now: float) -> list[Alias]:
    """The aliases that some backend can serve now."""
    states = gateway.fleet.states
    return [alias for alias in gateway.snapshot.aliases.values() if can_serve(alias, states, now)]
