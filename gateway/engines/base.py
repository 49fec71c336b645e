"""The engine interface: an engine sends a call to its server and returns the answer in OpenAI's format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from gateway.config.snapshot import Backend
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import Endpoint
from gateway.domain.request import OwnForm
from gateway.domain.upstream import Response, UpstreamFailure, read_counted
from gateway.transport.h1 import RequestHead
from gateway.transport.sse import Counted
from gateway.transport.upload import Upload


class NativeRequest(NamedTuple):
    """The client's own request, at its own endpoint, with the body for this server."""

    form: OwnForm
    fields: dict[str, Raw]


@dataclass(slots=True)
class EngineRequest:
    """One attempt, ready to be sent. `fields` already contain the backend's model name, the alias' params and the
    clamped limits; `headers` are the allowed ones of the client and the gateway's own. `request_id`: as the log has it;
    the id in the headers may be longer."""

    endpoint: Endpoint
    stream: bool
    fields: dict[str, Raw]
    headers: list[tuple[str, str]]
    request_id: str
    own: NativeRequest | None = None  # set where the server is asked at the client's own endpoint
    upload: Upload | None = None  # the file of a form; then the body is a form with these fields
    memory: Counted | None = None  # what counts the bytes of an answer that are kept beside the body that is returned
    sender: str = ""  # the client, for work that is done apart
    head: RequestHead | None = None  # of the HTTP request, where it is known ahead: it has `sent_id`, and no `headers`
    sent_id: str = ""
    local_only: bool = False  # nothing of it may leave the LAN
    checks: bool = False  # it is one of the gateway's own, which may load a model but does not have others wait for it


class Engine:
    """One kind of server. `send` returns as soon as the head of the answer has arrived. The body has OpenAI's format:
    SSE chunks for a stream, else one JSON object. Errors of the server are returned as answers with their status;
    failures are raised as the exceptions of `domain/upstream.py`."""

    name: str

    async def prepare(self) -> None:
        """Do slow initialisation (imports); called at start if any backend has this engine. Raises nothing."""

    async def send(self, state: BackendState, call: EngineRequest) -> Response:
        raise NotImplementedError

    def read_models(self, answer: Any) -> Mapping[str, int | None]:
        """Model name -> window in tokens (None if not reported), from the decoded answer of `probe.models`."""
        return {}


def authorized(headers: list[tuple[str, str]], backend: Backend) -> list[tuple[str, str]]:
    """The headers with the backend's own key, where it has one."""
    key = backend.api_key
    return headers if key is None else [*headers, ("authorization", "Bearer " + key.reveal())]


NAME_MOST = 500  # characters of a model's name
WINDOW_MOST = 10**12  # tokens, as far as routes.yaml counts


def reported_name(value: Any) -> str | None:
    """A model's name as a server reports it; None if the value cannot be a name."""
    return value if isinstance(value, str) and 0 < len(value) <= NAME_MOST else None


def reported_window(*values: Any) -> int | None:
    """The first of these values of a server that can be a window (tokens); None where none can."""
    return next((value for value in values if type(value) is int and 0 < value <= WINDOW_MOST), None)


class TranslatedResponse:
    """A `Response` that is made of another one, `upstream`, while it is read."""

    status = 200

    def __init__(self, upstream: Response, content_type: str = "text/event-stream") -> None:
        self.headers: Mapping[str, str] = {"content-type": content_type}
        self.upstream = upstream

    async def read_some(self) -> bytes:
        raise NotImplementedError

    async def read_all(self, limit: int) -> bytes:
        return await read_counted(self, limit)

    def abort(self, reason: UpstreamFailure | None = None) -> None:
        self.upstream.abort(reason)

    def release(self) -> None:
        self.upstream.release()


async def read_out(response: Response, limit: int = 1024 * 1024) -> bytes:
    """The body of an answer, of at most `limit` bytes, with which nothing else is done. Raises as `read_all`."""
    try:
        return await response.read_all(limit)
    finally:
        response.release()


@dataclass(slots=True)
class WholeResponse:
    """A complete answer in memory, returned when the engine built the body itself."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    unmet: InexpressibleRequest | None = None  # set where another engine may serve the request

    async def read_some(self) -> bytes:
        body, self.body = self.body, b""
        return body

    async def read_all(self, limit: int) -> bytes:
        return await self.read_some()

    def abort(self, reason: Exception | None = None) -> None:
        self.body = b""

    def release(self) -> None:
        pass


# -- errors that an engine answers itself, without asking its server ---------------------------------------------------

MESSAGE_MOST = 2000  # characters

_decode = msgspec.json.Decoder(Any).decode


class InexpressibleRequest(Exception):
    """The engine's API cannot express the client's request; becomes a 400 in OpenAI's format."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param = message, param


class UnmetDemand(InexpressibleRequest):
    """A request that this engine's API cannot express, and that another engine may: the next candidate is asked."""


class RequestFields:
    """A request's fields, decoded on access. An absent field and null both read as None."""

    def __init__(self, raw: Mapping[str, Raw]) -> None:
        self._raw = raw

    def __getitem__(self, name: str) -> Any:
        if name not in self._raw:
            return None
        try:
            return _decode(self._raw[name])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise InexpressibleRequest(f"`{name}` is not valid JSON.", name) from None


def error_of(message: str, status: int, param: str | None = None) -> dict[str, str | None]:
    """The error object of OpenAI's envelope and of an error event."""
    kind = "invalid_request_error" if 400 <= status < 500 else "server_error"
    return {"message": message[:MESSAGE_MOST], "type": kind, "param": param, "code": None}


def refused(inexpressible: InexpressibleRequest) -> WholeResponse:
    """The answer to a request that the engine's API cannot express."""
    response = error_response(400, inexpressible.message, param=inexpressible.param)
    response.unmet = inexpressible if isinstance(inexpressible, UnmetDemand) else None
    return response


def error_response(
    status: int, message: str, *, param: str | None = None, retry_after: str | None = None
) -> WholeResponse:
    """An error answer that the engine makes itself, without asking its server."""
    body = msgspec.json.encode({"error": error_of(message, status, param)})
    headers = {"content-type": "application/json"}
    if retry_after:
        headers["retry-after"] = retry_after
    return WholeResponse(status, body, headers)
