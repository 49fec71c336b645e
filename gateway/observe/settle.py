"""The end of a request in numbers: counted exactly once, whatever happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.fleet import BackendState
    from gateway.observe.metrics import Route
    from gateway.relay import Relay


def settle(relay: Relay) -> None:
    """Count the request, its time and its tokens."""
    metrics = relay.gateway.metrics
    alias = relay.alias.name if relay.alias is not None else ""
    endpoint = relay.endpoint.name
    metrics.seconds.observe(relay.watch.now() - relay.began)
    for state, usage in relay.wasted:
        count_usage(relay, metrics.route(relay.client.label, alias, state.name, endpoint), state, usage)
    if relay.served is None:
        backend = relay.tried[-1].backend if relay.tried else ""
        if relay.trying is not None:  # broke after content, or was ended by the client or by the gateway's stop
            backend = relay.trying.name
            metrics.attempts.inc(backend, relay.outcome.removeprefix("stream_"))
        metrics.requests.inc(alias, backend, endpoint, relay.outcome)
        return
    route = metrics.route(relay.client.label, alias, relay.served.name, endpoint)
    route.attempt_ok.value += 1
    if relay.outcome == "200":
        route.answered.value += 1
    else:
        metrics.requests.inc(alias, relay.served.name, endpoint, relay.outcome)
    if relay.first_token:
        route.first_token.observe(relay.first_token - relay.began)
    if relay.usage is not None:
        count_usage(relay, route, relay.served, relay.usage)


def count_usage(relay: Relay, route: Route, state: BackendState, usage: dict[str, Any]) -> None:
    """Tokens as the backend reported them; they also teach how many bytes one of its tokens has."""
    prompt = usage.get("prompt_tokens")
    route.count_tokens("prompt", prompt)
    route.count_tokens("completion", usage.get("completion_tokens"))
    for field, name, kind in (
        ("prompt_tokens_details", "cached_tokens", "cached"),
        ("completion_tokens_details", "reasoning_tokens", "reasoning"),
    ):
        details = usage.get(field)
        if isinstance(details, dict):
            route.count_tokens(kind, details.get(name))
    if isinstance(prompt, int) and state.ratio.due(relay.request.prompt_bytes):
        relay.request.measure_media()
        if not relay.request.images:
            state.ratio.learn(relay.request.prompt_bytes, prompt)
