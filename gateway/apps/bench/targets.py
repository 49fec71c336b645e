"""The targets of a benchmark: a server by its URL, an alias through the gateway, and a backend asked directly with
exactly the request that the gateway would send. And what each is asked: prompts of a given length, no two of which
begin alike, so that no prefix cache can shorten the engine's work."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from gateway.apps.bench.results import DIRECT, GATEWAY
from gateway.apps.bench.sample import Send, refusal
from gateway.config.snapshot import Alias, Backend, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import CHAT
from gateway.domain.engine_traits import traits_of
from gateway.domain.request import parse
from gateway.domain.upstream import Response, UpstreamClient, UpstreamFailure
from gateway.engines.base import EngineRequest
from gateway.engines.outgoing import outgoing_fields, outgoing_headers
from gateway.engines.registry import ENGINES
from gateway.routing.plan import make_plan
from gateway.routing.serving import all_ready
from gateway.transport.h1 import open_client, post_json

CONNECT_SECONDS = 5.0
FETCH_SECONDS = 20.0  # for an answer that no model makes
MAX_FETCHED = 16 * 1024 * 1024  # bytes of a list of models
SETTLE_SECONDS = 12.0  # the gateway looks at a backend every `health.every`, 5 s by default
SETTLE_INTERVAL = 0.2
JSON = ("content-type", "application/json")
LOCAL_ONLY = ("x-gateway-local-only", "1")

_encode = msgspec.json.Encoder().encode


class UnmeasurableTarget(Exception):
    """A target cannot be measured; the text says why."""


class UrlTarget:
    """An OpenAI-compatible server, the gateway or any other, at a base URL with or without /v1. `look` sets `model`,
    unless it is given, and `window` (tokens; None if not reported)."""

    def __init__(
        self, name: str, url: str, model: str | None, key: str | None = None, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.name = name
        self.url = url
        self.model = model
        self.window: int | None = None
        self._address = Backend(name, engine="openai", url=url)
        self._client = open_client(self._address.origin, connect_timeout=CONNECT_SECONDS)
        self._headers = [*headers, *([("authorization", f"Bearer {key}")] if key else [])]

    async def look(self) -> None:
        """Read what has to be known before the first request. Raises UnmeasurableTarget if there is no answer."""
        models = ENGINES["openai"].read_models(await self._get(self._address.api_path + "/models"))
        if self.model is None:
            if not models:
                raise UnmeasurableTarget(f"{self.url} lists no model: name one with --model")
            self.model = next(iter(models))
        self.window = models.get(self.model)

    def prepare(self, spec: RequestSpec) -> Send:
        """Do all work of this process that is not to be timed: the request is ready to be sent."""
        content = body(spec, self.model)
        headers = [JSON, *self._headers, ("x-request-id", f"bench-{uuid.uuid4().hex}")]
        path = self._address.api_path + CHAT.path

        async def send() -> Response:
            return await post_json(self._client, path, headers, content)

        return send

    async def close(self) -> None:
        await self._client.close()

    async def _get(self, path: str) -> Any:
        return await fetch(self._client, "GET", path, self._headers, self.url)

    async def _post(self, path: str, content: Any) -> Any:
        return await fetch(self._client, "POST", path, [JSON, *self._headers], self.url, content)


class GatewayTarget(UrlTarget):
    """An alias through the gateway at `url`. Cloud backends cost money: without `cloud` no request leaves the LAN."""

    def __init__(self, url: str, alias: str, key: str | None, *, cloud: bool) -> None:
        super().__init__(GATEWAY, url, alias, key, () if cloud else (LOCAL_ONLY,))
        self.alias = alias

    async def look(self) -> None:
        card = await self._get(f"{self._address.api_path}/models/{quote(self.alias, safe='')}")
        self.window = next(iter(ENGINES["openai"].read_models({"data": [card]}).values()), None)

    async def foreign_requests(self, backend: str) -> int | None:
        """Requests in flight or queued at a backend, provided that this process has none there; None if not known."""
        entry = await self._status_of(backend)
        counts = [entry.get(name) for name in ("inflight", "foreign", "queue")]
        return sum(count for count in counts if isinstance(count, int)) if entry else None

    async def settle(self, backend: str | None) -> None:
        """Wait until the gateway has seen that the requests sent directly to the backend are over. Until then it
        counts them as another client's, and the next requests through the gateway would wait for their slots."""
        if backend is None:
            return
        until = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < until:
            if not (await self._status_of(backend)).get("foreign"):
                return
            await asyncio.sleep(SETTLE_INTERVAL)

    async def backend_url(self, backend: str) -> str | None:
        """The URL at which the gateway reaches a backend; it is shown to operators only. None if not shown, or not
        reachable from here."""
        try:
            plan = await self._post(self._address.root_path + "/admin/explain", {"alias": self.alias})
        except UnmeasurableTarget:
            return None
        steps = plan.get("steps") if isinstance(plan, dict) else None
        members = [b for step in steps or [] if isinstance(step, dict) for b in step.get("backends") or []]
        url = next((b.get("url") for b in members if isinstance(b, dict) and b.get("backend") == backend), None)
        return url if isinstance(url, str) and is_same_here(url, self.url) else None

    async def _status_of(self, backend: str) -> dict[str, Any]:
        """A backend's part of /status; empty where it is not reported."""
        try:
            status = await self._get(self._address.root_path + "/status")
        except UnmeasurableTarget:
            return {}
        backends = status.get("backends") if isinstance(status, dict) else None
        entry = backends.get(backend) if isinstance(backends, dict) else None
        return entry if isinstance(entry, dict) else {}


class BackendTarget:
    """A backend of routes.yaml, asked directly. The request goes through the gateway's own code up to the socket, so it
    is identical to the byte (model, params, thinking, Ollama's own API with its `num_ctx`)."""

    name = DIRECT

    def __init__(self, snapshot: Snapshot, alias: Alias, backend: Backend) -> None:
        """`backend`: of the snapshot, with the URL where it is to be asked."""
        self._alias = alias
        self._states = all_ready(snapshot)
        self._state: BackendState = self._states[backend.name]
        self._state.backend = backend
        if backend.url is not None:  # an engine that brings its own connections (litellm) has none
            self._state.client = open_client(backend.origin, connect_timeout=backend.timeouts.connect)

    async def look(self) -> None:
        """Read what the gateway has read from the backend too: its model and window."""
        backend, client = self._state.backend, self._state.client
        engine = ENGINES[backend.engine]
        await engine.prepare()
        probe = traits_of(backend).probe
        if client is None or probe is None or probe.models is None:
            return
        models_path = probe.models
        path = backend.root_path + models_path if models_path.startswith("/") else f"{backend.api_path}/{models_path}"
        key = backend.api_key
        headers = [("authorization", "Bearer " + key.reveal())] if key is not None else []
        models = engine.read_models(await fetch(client, "GET", path, headers, backend.url or ""))
        if backend.model is None and models:
            self._state.saw_model(next(iter(models)), None)
        if self._state.model is not None:
            self._state.saw_model(self._state.reported.model, models.get(self._state.model))

    def prepare(self, spec: RequestSpec) -> Send:
        """The same. Raises UnmeasurableTarget."""
        request = parse(CHAT, _encode(body(spec, self._alias.name)))
        plan = make_plan(self._alias, self._states, request, time.monotonic())
        adapt = next((c.adapt for c in plan.candidates if c.state is self._state), None)
        if adapt is None:
            why = next((s.reason for s in plan.skipped if s.state is self._state), "the alias does not name it")
            raise UnmeasurableTarget(f"{self._state.name} is not asked this: {why}")
        fields, _ = outgoing_fields(request, self._alias, self._state, adapt)
        identity = f"bench-{uuid.uuid4().hex}"
        headers = outgoing_headers({}, identity)

        async def send() -> Response:
            call = EngineRequest(CHAT, True, dict(fields), headers, identity)
            return await ENGINES[self._state.backend.engine].send(self._state, call)

        return send

    async def close(self) -> None:
        if self._state.client is not None:
            await self._state.client.close()


Target = UrlTarget | BackendTarget


async def find_backend(snapshot: Snapshot, alias: Alias, name: str, gateway: GatewayTarget) -> BackendTarget:
    """The backend that answers for the alias, at the URL that the gateway uses, else at that of the file. Raises
    UnmeasurableTarget."""
    if name not in snapshot.backends:
        raise UnmeasurableTarget(f"the gateway was answered by '{name}', which {snapshot.source} does not know")
    backend = snapshot.backends[name]
    url = await gateway.backend_url(name) or backend.url
    return BackendTarget(snapshot, alias, replace(backend, url=url))


def is_same_here(url: str, gateway: str) -> bool:
    """Does an address that the gateway at `gateway` uses mean the same server here? 127.0.0.1 is the gateway's
    machine."""
    return not _is_loopback(url) or _is_loopback(gateway)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")


async def fetch(
    client: UpstreamClient, method: str, path: str, headers: Sequence[tuple[str, str]], url: str, content: Any = None
) -> Any:
    """The decoded JSON of one small answer; `content` is sent as JSON. Raises UnmeasurableTarget, whose text has
    `url`."""
    try:
        async with asyncio.timeout(FETCH_SECONDS):
            sent = b"" if content is None else _encode(content)
            response = await client.send(method, path, headers, sent, fresh=True)
            try:
                answer = await response.read_all(MAX_FETCHED)
            finally:
                response.release()
    except UpstreamFailure as failure:
        raise UnmeasurableTarget(f"{url} does not answer: {failure}") from None
    except TimeoutError:
        raise UnmeasurableTarget(f"{url} does not answer within {FETCH_SECONDS:.0f} s") from None
    if response.status != 200:
        raise UnmeasurableTarget(f"{url} {refusal(response.status, answer)}")
    try:
        return msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UnmeasurableTarget(f"{url} does not answer in JSON") from None


# -- requests ----------------------------------------------------------------------------------------------------------

# Short and frequent: about one token each in any tokenizer.
_WORDS = Path(__file__).with_name("words.txt").read_text().split()


class RequestSpec(NamedTuple):
    """One request to be made. `words`: length of its prompt; `tokens`: length of its answer. `nonce`: no other request
    has it; requests that are compared share the `seed` of the words, so their prompts are equally long. `forced`: send
    the fields that make vLLM give an answer of exactly that length. Without `thinking`, the model's default."""

    words: int
    tokens: int
    nonce: str
    seed: int
    forced: bool = True
    thinking: bool | None = None


class Sizing(NamedTuple):
    """Tokens of a prompt = `overhead` (the chat template and our own sentence) + `per_word` x words."""

    overhead: float = 60.0
    per_word: float = 1.25

    def words(self, tokens: int) -> int:
        """The number of words that make a prompt of about this many tokens."""
        return max(0, round((tokens - self.overhead) / self.per_word))


def sizing(seen: Sequence[tuple[int, int]]) -> Sizing:
    """The sizing that follows from (words, tokens) of prompts that the server has counted; the default where two counts
    that differ are missing."""
    if len(seen) < 2:
        return Sizing()
    (few, least), (many, most) = min(seen), max(seen)
    if many == few or most <= least:
        return Sizing()
    per_word = (most - least) / (many - few)
    return Sizing(least - per_word * few, per_word)


def prompt(spec: RequestSpec) -> str:
    """The text of the prompt. The nonce stands first, so that the prompt differs from its first cache block on. The
    words are drawn at random: one repeated sentence would favour speculative decoding that predicts tokens from the
    prompt."""
    pick = Random(spec.seed)
    text = " ".join(pick.choices(_WORDS, k=spec.words))
    return (
        f"[{spec.nonce}] Write a story of at least {spec.tokens} words, and do not stop before. "
        f"Take what you like of these words:\n\n{text}"
    )


def body(spec: RequestSpec, model: str | None) -> dict[str, Any]:
    """The body of the chat request. It asks for usage: the server counts tokens, as one chunk may hold several."""
    fields: dict[str, Any] = {} if model is None else {"model": model}
    fields |= {
        "messages": [{"role": "user", "content": prompt(spec)}],
        "max_tokens": spec.tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if spec.forced:
        fields |= {"ignore_eos": True, "min_tokens": spec.tokens}
    if spec.thinking is not None:
        fields["chat_template_kwargs"] = {"enable_thinking": spec.thinking}
    return fields
