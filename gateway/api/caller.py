"""The caller of a request beside inference, and its answer, without a framework."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from gateway.admission.access import Caller, Identity, identify
from gateway.admission.memory import Share
from gateway.admission.origins import check_json, check_origin, has_body, is_from_here
from gateway.domain.body import unreadable
from gateway.domain.privacy import Privacy
from gateway.errors import GatewayError, exhausted
from gateway.proxy.exchange import Scope
from gateway.proxy.header_map import header_map
from gateway.runtime.gateway import Gateway
from gateway.shortage import shortage_of

JSON = "application/json"


class PageAnswer(NamedTuple):
    """A whole answer."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


Page = Callable[[Caller], Awaitable[PageAnswer]]


def json_answer(value: Any, status: int = 200) -> PageAnswer:
    return PageAnswer(msgspec.json.encode(value), status)


def error_answer(error: GatewayError) -> PageAnswer:
    return PageAnswer(error.envelope(), error.status, JSON, tuple(error.headers()))


def client_error(gateway: Gateway, error: Exception) -> GatewayError | None:
    """The error that a client gets for this one; a lack of the gateway's own resources is counted. None = a defect."""
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, RecursionError):
        return unreadable(error)
    kind = shortage_of(error)
    if kind is None:
        return None
    gateway.short_of(kind)
    return exhausted(kind)


def caller_of(scope: Scope) -> Caller:
    """The caller of an ASGI request."""
    client = scope.get("client")
    return Caller(header_map(scope["headers"]), client[0] if client else "", scope["http_version"])


def identify_caller(gateway: Gateway, caller: Caller) -> Identity:
    """The caller's client. Raises `invalid_api_key`, `foreign_origin`, `foreign_host`."""
    return identify(gateway.snapshot, caller.headers, caller.peer or "local")


def owner_of(gateway: Gateway, scope: Scope) -> str:
    """The client whose files, batches and kept responses these are; without `clients` all callers share them. Raises
    `invalid_api_key`, `foreign_origin`."""
    return caller_of(scope).identify(gateway.snapshot).label


def keeping(gateway: Gateway, scope: Scope) -> tuple[str, Privacy, Share]:
    """Of a request for something kept: whose it is (`owner_of`), what it says about privacy, its memory. Raises as
    `owner_of`."""
    caller = caller_of(scope)
    client = caller.identify(gateway.snapshot)
    return client.label, caller.privacy(client), Share(gateway.memory, caller)


def admit(gateway: Gateway, caller: Caller, what: str = "/admin") -> None:
    """Admits a client with `admin: true`; without `clients`, a program on this machine. Never a page of another site.
    `what`: the path, for messages.

    Raises `invalid_api_key` without a valid key, `admin_only` for a client that is no admin, `foreign_origin`,
    `unsupported_media_type`."""
    check_origin(caller.headers)
    if not gateway.snapshot.clients and not is_from_here(caller.headers, caller.peer, caller.http_version):
        message = (
            f"Without `clients` in routes.yaml {what} answers only this machine itself, at 127.0.0.1 or localhost, and "
            "through no proxy."
        )
        raise GatewayError("admin_only", message)
    identity = identify(gateway.snapshot, caller.headers, caller.peer)
    if identity.client is not None and not identity.client.admin:
        message = f"Client '{identity.name}' is no admin: {what} takes the key of a client with `admin: true`."
        raise GatewayError("admin_only", message)
    if has_body(caller.headers):
        check_json(caller.headers)
