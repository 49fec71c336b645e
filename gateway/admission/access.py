"""Identifies the client of a request, and checks which alias it may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from gateway.admission.origins import check_json, check_source
from gateway.config.snapshot import OPEN, Alias, Client, Snapshot
from gateway.domain.body import value_of
from gateway.domain.privacy import Privacy
from gateway.domain.request import InferenceRequest
from gateway.engines.outgoing import passed_on
from gateway.errors import GatewayError, model_not_found
from gateway.printable import visible
from gateway.routing.conversation_key import session_in_headers
from gateway.routing.needs import is_task

_NO = frozenset((b"0", b"false", b"no", b"off"))
_USER_HEADERS = (b"x-openwebui-user-id", b"x-openwebui-user-email")
_USER_FIELDS = ("safety_identifier", "user")
_USER_NAME_MOST = 64  # characters


@dataclass(frozen=True, slots=True)
class Identity:
    """Who sent a request. `name`: the client's name, else the source address. `label`: under which things are kept and
    counted for it, "open" without `clients`."""

    name: str
    label: str
    client: Client | None = None

    @property
    def local_only(self) -> bool:
        return self.client is not None and self.client.local_only

    def may_use(self, alias: Alias) -> bool:
        return self.client is None or self.client.may_use(alias.name)


def identify(snapshot: Snapshot, headers: Mapping[bytes, bytes], peer: str) -> Identity:
    """The client by its key (`Authorization: Bearer` or `x-api-key`). Without `clients` every caller is admitted except
    a web page of another site.

    Keys are looked up by their SHA-256, so the time of a comparison shows nothing about a key. Raises
    `invalid_api_key`, `foreign_origin`, `foreign_host`.
    """
    check_source(snapshot, headers)
    if not snapshot.clients:
        return Identity(peer, OPEN)
    key = given_key(headers)
    if key is None:
        raise GatewayError("invalid_api_key", "No API key: send `Authorization: Bearer KEY` or `x-api-key: KEY`.")
    client = snapshot.clients_by_key.get(sha256(key).hexdigest())
    if client is None:
        raise GatewayError("invalid_api_key", "This API key is not one of the gateway's `clients`.")
    return Identity(client.name, client.owner, client)


def user_of(identity: Identity, headers: Mapping[bytes, bytes], request: InferenceRequest) -> Identity:
    """The user of the client for whom the request is, where routes.yaml says so and the request names one: a name under
    the client's, so none takes another client's."""
    client = identity.client
    if client is None or client.users is None:
        return identity
    said = [headers.get(name, b"").decode("utf-8", "replace") for name in _USER_HEADERS]
    told = [value_of(request.fields.get(name)) for name in _USER_FIELDS]
    given = [*(said if client.users.read_from == "header" else ()), *(text for text in told if isinstance(text, str))]
    name = next((text for text in given if text.strip()), "")
    if not name:
        return identity
    user = client.user(visible(" ".join(name.split()))[:_USER_NAME_MOST])
    return Identity(user.name, identity.label, user)


def given_key(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The bearer token if there is one, else `x-api-key`; None if both are missing or empty."""
    authorization = headers.get(b"authorization")
    if authorization is not None and authorization[:7].lower() == b"bearer " and (key := authorization[7:].strip()):
        return key
    return headers.get(b"x-api-key", b"").strip() or None


def asks_local_only(headers: Mapping[bytes, bytes]) -> bool:
    """`x-gateway-local-only`: every value means yes, also an empty one, except the clear forms of no in `_NO`."""
    value = headers.get(b"x-gateway-local-only")
    return value is not None and not all(word.strip().lower() in _NO for word in value.split(b","))


def find_alias(snapshot: Snapshot, identity: Identity, model: str) -> Alias:
    """The alias that the client named as `model`. Raises `model_not_found`, `model_not_allowed`."""
    alias = snapshot.resolve(model)
    if alias is None:
        raise model_not_found(model, [name for name in snapshot.aliases if identity.may_use(snapshot.aliases[name])])
    if not identity.may_use(alias):
        raise GatewayError("model_not_allowed", f"Client '{identity.name}' may not use '{model}'.", param="model")
    return alias


def alias_for(snapshot: Snapshot, identity: Identity, request: InferenceRequest) -> Alias:
    """The alias that the client named; for side calls of a client with `tasks`, the alias for those. Raises as
    `find_alias`."""
    alias = find_alias(snapshot, identity, request.model)
    tasks = identity.client.tasks if identity.client is not None else None
    if tasks is not None and is_task(request):
        return snapshot.resolve(tasks.alias) or alias
    return alias


class Caller:
    """The sender of a request: its `headers` (lower-case names, see header_map.py), its address `peer` and the version
    of its HTTP. Every other attribute is what the function of that name finds in the headers, once: all requests of a
    connection that repeat a head (http/request_head.py) have one `Caller`."""

    def __init__(self, headers: dict[bytes, bytes], peer: str, http_version: str = "1.1") -> None:
        self.headers = headers
        self.peer = peer
        self.http_version = http_version
        self._identity: Identity | None = None
        self._snapshot: Snapshot | None = None  # that `_identity` was found in
        self._is_json = False
        self.decisions: Any = None  # what was decided for earlier requests with this head (proxy/decisions.py)

    @property
    def sender(self) -> str:
        """The client's name, once it is identified; else its address."""
        return self._identity.name if self._identity is not None else self.peer

    def identify(self, snapshot: Snapshot) -> Identity:
        """The client by its key. Raises as `identify`."""
        if self._identity is None or snapshot is not self._snapshot:
            self._identity = identify(snapshot, self.headers, self.peer)
            self._snapshot = snapshot
        return self._identity

    def check_json(self) -> None:
        """Raises `unsupported_media_type` for a body that is not JSON."""
        if not self._is_json:
            check_json(self.headers)
            self._is_json = True

    @cached_property
    def _asks_local_only(self) -> bool:
        return asks_local_only(self.headers)

    def privacy(self, client: Identity) -> Privacy:
        """What the headers say, and routes.yaml of the client."""
        return Privacy(local_only=client.local_only or self._asks_local_only)

    def with_privacy(self, privacy: Privacy) -> Caller:
        """A caller whose request says this too. This one may be that of other requests: it is not changed."""
        return Caller({**self.headers, **privacy.headers()}, self.peer, self.http_version)

    @cached_property
    def passed_on(self) -> list[tuple[str, str]]:
        return passed_on(self.headers)

    @cached_property
    def session(self) -> bytes | None:
        return session_in_headers(self.headers)
