"""The ways a request can go: to a URL as any client sends it, or to a backend exactly as the gateway would send it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from gateway.benching.prompts import Ask, body
from gateway.benching.timing import Send, refusal
from gateway.config.snapshot import Alias, Backend, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.engine_traits import TRAITS
from gateway.domain.request import CHAT, parse
from gateway.domain.upstream import Client, Response, UpstreamFailure
from gateway.engines.base import Call
from gateway.engines.outgoing import fields_up, headers_up
from gateway.engines.registry import ENGINES
from gateway.routing.plan import make_plan
from gateway.routing.serving import all_ready
from gateway.runtime.gateway import open_backend
from gateway.transport.connect import open_client

CONNECT = 5.0  # seconds
SMALL = 20.0  # seconds for an answer that is no model's
ANSWER_MOST = 16 * 1024 * 1024  # bytes of a list of models
JSON = ("content-type", "application/json")

_encode = msgspec.json.Encoder().encode


class NotThere(Exception):
    """It cannot be measured; the text says why."""


class Way(Protocol):
    """`name` is what tables call it."""

    name: str

    def prepare(self, ask: Ask) -> Send:
        """All work that is ours and not to be timed: the request is ready to be sent when it returns."""
        ...

    async def close(self) -> None: ...


class Url:
    """An OpenAI-compatible server, the gateway or any other, at a base URL with or without /v1."""

    def __init__(
        self, name: str, url: str, model: str | None, key: str | None = None, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.name = name
        self.model = model
        self.at = Backend(name, engine="openai", url=url)
        self._client = open_client(self.at.origin, connect_timeout=CONNECT)
        self._headers = [*headers, *([("authorization", f"Bearer {key}")] if key else [])]

    def prepare(self, ask: Ask) -> Send:
        content = _encode(body(ask, self.model))
        headers = [JSON, *self._headers, ("x-request-id", f"bench-{uuid.uuid4().hex}")]
        path = self.at.api_path + CHAT.path

        async def send(fresh: bool) -> Response:
            return await self._client.send("POST", path, headers, content, fresh=fresh)

        return send

    async def get(self, path: str) -> Any:
        """The decoded JSON under the root path. Raises NotThere."""
        return await fetch(self._client, "GET", path, self._headers, self.at.url or "")

    async def post(self, path: str, content: Any) -> Any:
        """The same of a POST."""
        return await fetch(self._client, "POST", path, [JSON, *self._headers], self.at.url or "", content)

    async def models(self) -> list[dict[str, Any]]:
        """Its cards. Raises NotThere."""
        return _cards(await self.get(self.at.api_path + "/models"))

    async def close(self) -> None:
        await self._client.close()


class Direct:
    """A backend of routes.yaml: the request goes through the gateway's own code up to the socket, so it is the same to
    the byte (model, params, thinking, Ollama's own API with its `num_ctx`)."""

    name = "direct"

    def __init__(self, snapshot: Snapshot, alias: Alias, backend: Backend) -> None:
        """`backend`: of the snapshot, with the URL where it is to be asked."""
        self._alias = alias
        self._states = all_ready(snapshot)
        self.state: BackendState = self._states[backend.name]
        self.state.backend = backend
        self.state.client = open_backend(backend)

    async def look(self) -> None:
        """What the gateway has read from it too. Raises NotThere where nobody answers."""
        backend, client = self.state.backend, self.state.client
        engine = ENGINES[backend.engine]
        await engine.prepare()
        probe = TRAITS[backend.engine].probe
        if client is None or probe is None or probe.models is None:
            return
        models_path = probe.models
        path = backend.root_path + models_path if models_path.startswith("/") else f"{backend.api_path}/{models_path}"
        key = backend.api_key
        headers = [("authorization", "Bearer " + key.reveal())] if key is not None else []
        answer = await fetch(client, "GET", path, headers, backend.url or "")
        models = engine.read_models(answer)
        if backend.model is None and models:
            self.state.observed_model = next(iter(models))
        if self.state.model is not None:
            self.state.observed_context = models.get(self.state.model)

    def prepare(self, ask: Ask) -> Send:
        request = parse(CHAT, _encode(body(ask, self._alias.name)))
        plan = make_plan(self._alias, self._states, request, time.monotonic())
        adapt = next((c.adapt for c in plan.candidates if c.state is self.state), None)
        if adapt is None:
            why = next((s.reason for s in plan.skipped if s.state is self.state), "the alias does not name it")
            raise NotThere(f"{self.state.name} is not asked this: {why}")
        fields, _ = fields_up(request, self._alias, self.state, adapt)
        identity = f"bench-{uuid.uuid4().hex}"
        headers = headers_up({}, identity)

        async def send(fresh: bool) -> Response:
            call = Call(CHAT, True, dict(fields), headers, identity, fresh=fresh)
            return await ENGINES[self.state.backend.engine].send(self.state, call)

        return send

    async def close(self) -> None:
        if self.state.client is not None:
            await self.state.client.close()


async def fetch(
    client: Client, method: str, path: str, headers: Sequence[tuple[str, str]], url: str, content: Any = None
) -> Any:
    """The decoded JSON of one small answer; `content` is sent as JSON. Raises NotThere, in words with `url`."""
    try:
        async with asyncio.timeout(SMALL):
            sent = b"" if content is None else _encode(content)
            response = await client.send(method, path, headers, sent, fresh=True)
            try:
                answer = await response.read_all(ANSWER_MOST)
            finally:
                response.release()
    except UpstreamFailure as failure:
        raise NotThere(f"{url} does not answer: {failure}") from None
    except TimeoutError:
        raise NotThere(f"{url} does not answer within {SMALL:.0f} s") from None
    if response.status != 200:
        raise NotThere(f"{url} {refusal(response.status, answer)}")
    try:
        return msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotThere(f"{url} does not answer in JSON") from None


def _cards(answer: Any) -> list[dict[str, Any]]:
    cards = answer.get("data") if isinstance(answer, dict) else None
    found = cards if isinstance(cards, list) else []
    return [card for card in found if isinstance(card, dict) and isinstance(card.get("id"), str)]


def window_of(card: Any) -> int | None:
    """Tokens; None = not told."""
    if not isinstance(card, dict):
        return None
    window = card.get("max_model_len") or card.get("context_length")
    return window if isinstance(window, int) and window > 0 else None
