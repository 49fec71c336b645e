"""A captured request, sent again."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import msgspec

from gateway.admission.access import Identity, find_alias
from gateway.admission.memory import Share
from gateway.api.admin import backend_of
from gateway.apps.requests.answer_text import said
from gateway.apps.requests.capture import CapturedRequest
from gateway.config.snapshot import OPEN, Alias, Snapshot
from gateway.domain.privacy import Privacy
from gateway.domain.request import ENDPOINTS
from gateway.errors import GatewayError
from gateway.proxy.inner_exchange import InnerExchange, OnBehalf
from gateway.runtime.gateway import Gateway


class _Named(msgspec.Struct):
    model: str


async def replay(gateway: Gateway, captured: CapturedRequest, on: str | None) -> dict[str, Any]:
    """Send it again for its client, by that client's rules as they are now; `on`: to this backend alone. `{id, backend,
    status, then, now}`, the answers as `said`. Raises GatewayError where it cannot be sent."""
    if not captured.whole:
        raise GatewayError("operation_refused", "Its body was longer than what is captured: it cannot be sent again.")
    endpoint = next((one for one in ENDPOINTS if one.name == captured.endpoint), None)
    if endpoint is None:
        raise GatewayError("operation_refused", f"This gateway does not serve {captured.endpoint}.")
    snapshot = gateway.snapshot
    client = snapshot.clients_by_owner.get(captured.client)
    if client is None and (snapshot.clients or captured.client != OPEN):
        raise GatewayError("operation_refused", f"Client '{captured.client}' is not in routes.yaml any more.")
    identity = Identity("replay" if client is None else client.name, captured.client, client)
    alias = _alias(gateway, snapshot, identity, captured, on)
    id = f"replay-{secrets.token_hex(8)}"
    headers = {b"content-type": b"application/json", b"x-request-id": id.encode()}
    held, kept = Share(gateway.memory), Share(gateway.memory)
    privacy = Privacy(local_only=captured.local_only)
    exchange = InnerExchange(headers, "replay", captured.request, held, kept, privacy)
    try:
        translated = gateway.apps.translated(endpoint, exchange)
        await gateway.handle(endpoint, translated, OnBehalf(identity, alias))
        backend = exchange.fields.get(b"x-gateway-backend", b"").decode("latin-1")
        answers = {"then": said(captured.answer), "now": said(bytes(exchange.body))}
        return {"id": id, "backend": backend, "status": exchange.status, **answers}
    finally:
        kept.close()


def _alias(
    gateway: Gateway, snapshot: Snapshot, identity: Identity, captured: CapturedRequest, on: str | None
) -> Alias:
    """The alias that the request names, or of it the one step `on`."""
    try:
        model = msgspec.json.decode(captured.request, type=_Named).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise GatewayError("operation_refused", "Its body names no `model`.") from None
    alias = find_alias(snapshot, identity, model)
    if on is None:
        return alias
    backend = backend_of(gateway, on).backend
    if backend.cloud and not any(on in step for step in alias.steps):
        message = f"'{on}' is a cloud, and alias '{alias.name}' does not name it: the request stays in the LAN."
        raise GatewayError("operation_refused", message)
    return replace(alias, steps=((on,),), ask_all=())
