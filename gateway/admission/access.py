"""Identifies the client of a request, and checks which alias it may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from gateway.admission.origins import check_source
from gateway.config.snapshot import OPEN, Alias, Client, Snapshot
from gateway.domain.body import value_of
from gateway.domain.request import InferenceRequest
from gateway.errors import GatewayError, model_not_found
from gateway.printable import visible
from gateway.routing.tasks import task_alias

_NO = frozenset((b"0", b"false", b"no", b"off"))


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


_USER_HEADERS = (b"x-openwebui-user-id", b"x-openwebui-user-email")
_USER_FIELDS = ("safety_identifier", "user")
_USER_NAME_MOST = 64  # characters


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
    if identity.client is not None and identity.client.tasks is not None:
        name = task_alias(request, identity.client)
        alias = snapshot.resolve(name) or alias if name is not None else alias
    return alias
