"""vLLM and other servers with OpenAI's API: calls and answers are passed on unchanged."""

from __future__ import annotations

import re
import time
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

from msgspec import Raw

from gateway.domain.backend import BackendState
from gateway.domain.endpoints import Endpoint
from gateway.domain.engine_traits import RESPONSES_LACK
from gateway.domain.facts import Source
from gateway.domain.upstream import EngineDied, Response
from gateway.engines.base import (
    Engine,
    EngineRequest,
    InexpressibleRequest,
    NativeRequest,
    WholeResponse,
    authorized,
    read_out,
    refused,
    reported_name,
    reported_window,
)
from gateway.engines.openai.asking import ask, keeps_stop
from gateway.engines.openai.parts import StreamOfParts, WholeOfParts
from gateway.inspection.error_replies import read_error
from gateway.transport.client import post_framed, post_json
from gateway.transport.h1 import H1Client

_NOT_THERE = (404, 405, 501)
_REFUSED = (400, 422, 500)  # it may take the same request as a chat


class OpenAIEngine(Engine):
    """All engines that speak OpenAI's API; they differ only in their traits."""

    def __init__(self, name: str) -> None:
        self.name = name

    def send(self, state: BackendState, call: EngineRequest) -> Coroutine[Any, Any, Response]:
        if call.own is not None:
            return _send_own(state, call, call.own)
        return _send_chat(state, call)

    def read_models(self, answer: Any) -> Mapping[str, int | None]:
        return {card["id"]: card_window(card) for card in model_cards(answer)}


def _send_chat(state: BackendState, call: EngineRequest) -> Coroutine[Any, Any, Response]:
    otherwise = state.traits.asked_otherwise or ("stop" in call.fields and keeps_stop(call, state))
    return _send_otherwise(state, call) if otherwise else _post(state, call, call.fields)


def _post(
    state: BackendState, call: EngineRequest, fields: Mapping[str, Raw], endpoint: Endpoint | None = None
) -> Coroutine[Any, Any, Response]:
    assert state.client is not None
    if call.head is not None and isinstance(state.client, H1Client):
        return post_framed(state.client, call.head, call.sent_id, fields)
    backend, path = state.backend, (endpoint or call.endpoint).path
    return post_json(state.client, backend.api_path + path, authorized(call.headers, backend), fields)


async def _send_own(state: BackendState, call: EngineRequest, own: NativeRequest) -> Response:
    """Send the client's own request to its own endpoint; as a chat where the server lacks that or refuses it."""
    response = await _post(state, call, own.fields, own.form.endpoint)
    if response.status < 300:
        return own.form.as_chat(response, call.stream, call.memory, call.sender)
    if own.form.untranslatable is not None or response.status not in (*_NOT_THERE, *_REFUSED):
        return response
    await read_out(response)
    chat = await _send_chat(state, call)
    if response.status in _NOT_THERE and chat.status < 300:
        state.facts.learn_lack(RESPONSES_LACK, time.monotonic(), Source(call.request_id))
    return chat


async def _send_otherwise(state: BackendState, call: EngineRequest) -> Response:
    """Send the call to a server that lacks something. A request that it cannot be given at all is answered with 400."""
    try:
        asked = ask(call, state.traits, keeps_stop=keeps_stop(call, state))
    except InexpressibleRequest as inexpressible:
        return refused(inexpressible)
    first, *more = asked.bodies
    response = await _post(state, call, first)
    if response.status >= 300:
        return await _unless_dead(response, state.traits.tells_death)
    if asked.as_is or "text/event-stream" not in response.headers.get("content-type", ""):
        return response
    prompt_bytes = sum(len(memoryview(first[name])) for name in call.endpoint.prompt if name in first)
    sends = [partial(_post, state, call, body) for body in more]
    tokens = state.ratio.estimate(prompt_bytes).mid
    join = WholeOfParts if asked.assembled else StreamOfParts
    return join(call.endpoint, response, sends, asked.stops, tokens, call.memory, asked.each)


async def _unless_dead(response: Response, texts: tuple[str, ...]) -> Response:
    """An error answer as it is. Raises EngineDied where it matches one of `texts`: its status may blame the client."""
    if not texts:
        return response
    body = await read_out(response)
    message, *_ = read_error(body, response.headers.get("content-type", ""))
    if any(re.fullmatch(text, message) for text in texts):
        raise EngineDied(f"answers {response.status}: {message}")
    return WholeResponse(response.status, body, response.headers)


# -- the list of models (`/v1/models`), untrusted ----------------------------------------------------------------------


def model_cards(answer: Any) -> list[dict[str, Any]]:
    """The entries of the decoded answer whose `id` can be a model's name, in the server's order."""
    cards = answer.get("data") if isinstance(answer, dict) else None
    found = cards if isinstance(cards, list) else []
    return [card for card in found if isinstance(card, dict) and reported_name(card.get("id")) is not None]


def loaded_models(answer: Any, where: tuple[str, str] | None) -> dict[str, bool]:
    """Model name -> is it loaded, for a server that loads models by itself and tells which are (llama-server as a
    router). `where`: `EngineTraits.loaded`. Models without such an entry are left out."""
    path, value = where if where is not None else ("", "")
    stated = {card["id"]: at_path(card, path) for card in model_cards(answer)} if path else {}
    return {name: found == value for name, found in stated.items() if isinstance(found, str)}


def at_path(value: Any, path: str) -> Any:
    """The value at "a.b" = `b` inside `a`; None if there is no such key."""
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def card_window(card: dict[str, Any]) -> int | None:
    """The window in tokens: vLLM's `max_model_len`, llama-server's `meta.n_ctx`, others' another key; None if none."""
    stated = at_path(card, "meta.n_ctx")
    return reported_window(card.get("max_model_len"), card.get("context_length"), stated)
