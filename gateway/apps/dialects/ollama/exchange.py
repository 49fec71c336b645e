"""A request of Ollama's API and its answer, for the exchange around them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from gateway.admission.access import Caller, find_alias
from gateway.admission.origins import is_json
from gateway.apps.dialects.ollama.answer import OllamaAnswer, embeddings_of, error_of
from gateway.apps.dialects.ollama.request import OllamaRequest, Resolve, chat_of, embedding_of, generation_of
from gateway.apps.dialects.translated import TranslatedExchange, Translation
from gateway.config.snapshot import Alias, Snapshot
from gateway.domain.endpoints import EMBEDDINGS, OLLAMA_CHAT, OLLAMA_EMBED, OLLAMA_EMBEDDINGS, OLLAMA_GENERATE, Endpoint
from gateway.errors import PassedOn
from gateway.proxy.exchange import Exchange
from gateway.runtime.gateway import Gateway

JSON = b"application/json"
TAG = ":latest"  # what Ollama's clients add to a name without a tag
READ: Mapping[Endpoint, Callable[[bytes, Resolve], OllamaRequest]] = {
    OLLAMA_CHAT: chat_of,
    OLLAMA_GENERATE: generation_of,
    OLLAMA_EMBED: embedding_of,
    OLLAMA_EMBEDDINGS: embedding_of,
}
_NOTHING = OllamaRequest(b"", "", stream=False, left_out=[])


class AnsweredAtOnce(PassedOn):
    """The answer to a request that needs no backend."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(200, "", None, None)
        self._answer = answer

    def envelope(self) -> bytes:
        return self._answer


class OllamaTranslation(Translation):
    stream_type = b"application/x-ndjson"

    def __init__(self, endpoint: Endpoint, resolve: Resolve) -> None:
        self._endpoint, self._resolve = endpoint, resolve
        self._asked = _NOTHING
        self._at_once = False
        self._answer = self._answer_to("")

    def _answer_to(self, model: str) -> OllamaAnswer:
        generates = self._endpoint is OLLAMA_GENERATE
        return OllamaAnswer(model, time.time(), generates=generates, clock=time.monotonic_ns)

    def request(self, body: bytes) -> bytes:
        """Raises AnsweredAtOnce without a prompt: Ollama would load or unload the model; backends start otherwise."""
        self._asked = asked = READ[self._endpoint](body, self._resolve)
        self._answer, self.left_out = self._answer_to(asked.model), asked.left_out
        if asked.empty:
            self._at_once = True
            raise AnsweredAtOnce(self._answer.loaded(unload=asked.unload))
        return asked.body

    def whole(self, body: bytes) -> bytes:
        if self._at_once:
            return body
        if self._endpoint.becomes is EMBEDDINGS:
            older = self._endpoint is OLLAMA_EMBEDDINGS
            return embeddings_of(body, self._asked.model, self._answer.took(), older=older)
        return self._answer.whole(body)

    def error(self, status: int, body: bytes) -> tuple[bytes, dict[bytes, bytes]]:
        return error_of(body), {}

    def events(self, events: Iterable[bytes], hold: Callable[[int], object]) -> bytes:
        return self._answer.lines(events, hold)


def asked_alias(snapshot: Snapshot, caller: Caller, model: str) -> tuple[str, Alias]:
    """(the name for the alias in a request to the gateway, the alias) that a client of Ollama's means. Raises
    `model_not_found`, `model_not_allowed`, and what identifying the caller raises."""
    name = model.removesuffix(TAG) if snapshot.resolve(model) is None else model
    return name, find_alias(snapshot, caller.identify(snapshot), name)


def translated(gateway: Gateway, endpoint: Endpoint, exchange: Exchange) -> Exchange:
    def resolve(model: str) -> str:
        return asked_alias(gateway.snapshot, exchange.caller, model)[0]

    made = TranslatedExchange(exchange, OllamaTranslation(endpoint, resolve))
    caller, kind = exchange.caller, exchange.headers.get(b"content-type")
    # Ollama reads what a program sends as JSON. A browser, which another site's page may have told to send it, names
    # itself in these headers.
    if kind and not is_json(kind) and caller.headers.keys().isdisjoint((b"origin", b"sec-fetch-site")):
        made.caller = Caller({**caller.headers, b"content-type": JSON}, caller.peer, caller.http_version)
    return made
