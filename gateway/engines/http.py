"""Servers of speech and of pictures. Where one differs from OpenAI's paths and fields, routes.yaml says how (`paths`,
`fields`, `fixed`); the answer is passed on as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Raw

from gateway.config.snapshot import Backend
from gateway.domain.backend import BackendState
from gateway.domain.body import value_of
from gateway.domain.endpoints import Endpoint
from gateway.domain.upstream import Response, StaleConnection
from gateway.engines.base import Engine, EngineRequest, InexpressibleRequest, authorized, refused
from gateway.transport.h1 import post_json

NONE = "none"  # in `fields`: the server is not sent this field
FILE = "file"

_encode = msgspec.json.Encoder(enc_hook=str).encode  # a string of routes.yaml may be of a class of its own


class HttpEngine(Engine):
    """`engine: http`."""

    name = "http"

    async def send(self, state: BackendState, call: EngineRequest) -> Response:
        assert state.client is not None
        backend = state.backend
        path, headers = path_of(backend, call.endpoint), authorized(call.headers, backend)
        fields = fields_for(backend, call.fields)
        upload = call.upload
        if upload is None:
            return await post_json(state.client, path, headers, fields)
        headers = [("content-type", upload.form_type), *(pair for pair in headers if pair[0] != "content-type")]
        name = backend.fields.get(upload.field, upload.field)
        if taken := fields.keys() & {name, *upload.further}:  # servers may take the last part of a name: another model
            what = f"A file may not be called `{min(taken)}`: a field of the form has that name."
            return refused(InexpressibleRequest(what, min(taken)))
        form = upload.form(_as_parts(fields), name)
        try:
            return await state.client.send("POST", path, headers, form)
        except StaleConnection:
            return await state.client.send("POST", path, headers, form, fresh=True)


def path_of(backend: Backend, endpoint: Endpoint) -> str:
    own = backend.paths.get(endpoint.name)
    return backend.api_path + endpoint.path if own is None else backend.root_path + str(own)


def fields_for(backend: Backend, fields: Mapping[str, Raw]) -> dict[str, Raw]:
    """The fields under the server's names, with its fixed values. (The file travels by itself.)"""
    sent = {backend.fields.get(name, name): value for name, value in fields.items() if name != FILE}
    sent.pop(NONE, None)
    return {**sent, **{name: Raw(_encode(value)) for name, value in backend.fixed.items()}}


def _as_parts(fields: Mapping[str, Raw]) -> Iterator[tuple[str, str]]:
    """The fields of a form: a list is a repeated field."""
    for name, raw in fields.items():
        value = value_of(raw)
        for one in value if isinstance(value, list) else [value]:
            yield name, one if isinstance(one, str) else _encode(one).decode()
