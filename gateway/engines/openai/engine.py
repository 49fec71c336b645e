"""vLLM and other servers with OpenAI's API: calls and answers are passed on unchanged."""

from __future__ import annotations

import re
import time
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from gateway.domain.backend import BackendState
from gateway.domain.body import as_number, value_of
from gateway.domain.endpoints import CHAT, Endpoint
from gateway.domain.engine_traits import RESPONSES_LACK, EngineTraits
from gateway.domain.facts import Source
from gateway.domain.request import is_limit
from gateway.domain.upstream import EngineDied, Response
from gateway.engines.base import (
    Engine,
    EngineRequest,
    InexpressibleRequest,
    NativeRequest,
    UnmetDemand,
    WholeResponse,
    authorized,
    read_out,
    refused,
    reported_name,
    reported_window,
)
from gateway.engines.openai.parts import StreamOfParts, WholeOfParts
from gateway.inspection.error_replies import read_error
from gateway.transport.h1 import H1Client, post_framed, post_json

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


# -- a server that lacks something of OpenAI's API: the bodies to send instead of the client's; pure -------------------

PARTS_MOST = 128  # answers to one request, as many as OpenAI allows
STOPS_MOST, STOP_MOST = 64, 1000  # stop strings, and characters of each
BIAS_MOST = 1_000_000  # a larger bias is left to the server; OpenAI allows 100

_encode = msgspec.json.Encoder().encode
_TRUE, _INCLUDE_USAGE = Raw(b"true"), Raw(b'{"include_usage":true}')

Fields = dict[str, Raw]


class BackendBodies(NamedTuple):
    """The bodies that are sent one after the other. `stops`: the stop strings that are looked for here. `assembled`:
    their streams become one whole answer. `each`: so many in a row are answers to one prompt."""

    bodies: list[Fields]
    stops: tuple[str, ...]
    assembled: bool
    each: int = 1

    @property
    def as_is(self) -> bool:
        """May the answer be passed on as it comes?"""
        return len(self.bodies) == 1 and not (self.stops or self.assembled)


def read_stops(raw: Raw | None) -> tuple[str, ...]:
    """The stop strings of a request. Raises Refused."""
    stop = value_of(raw)
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise InexpressibleRequest("`stop` must be a string or a list of strings.", "stop")
    if len(stops) > STOPS_MOST or any(len(one) > STOP_MOST for one in stops):
        raise InexpressibleRequest(f"`stop` may have at most {STOPS_MOST} strings of {STOP_MOST} characters.", "stop")
    return tuple(one for one in stops if one)


def split(fields: Fields, *, n: bool = True, prompts: bool = True, tokens: bool = False) -> list[Fields]:
    """One body for each answer that is asked for: `n` to each of the prompts. `n`, `prompts`: split by it. `tokens`:
    a prompt may be token ids. Raises Refused."""
    seed, count = value_of(fields.get("seed")), _answers_each(fields) if n else 1
    n = n and count > 0  # any other number is for the server to refuse
    count = count or 1
    texts = _prompts(value_of(fields.get("prompt")), tokens=tokens) if prompts else [None]
    if count * len(texts) > PARTS_MOST:
        raise UnmetDemand(
            f"`n` and `prompt` ask for more than {PARTS_MOST} answers; this server gives one at a time.", "n"
        )
    one = _without(fields, "n") if n else fields
    bodies = []
    for prompt in texts:
        for number in range(count):
            body = dict(one)
            if prompt is not None:
                body["prompt"] = Raw(_encode(prompt))
            if number and type(seed) is int:  # with the same seed all answers would be the same
                body["seed"] = Raw(_encode(seed + number))
            bodies.append(body)
    return bodies


def _answers_each(fields: Fields) -> int:
    """The answers to each prompt that are asked for; 0 = `n` is none that can be."""
    asked = value_of(fields.get("n"))
    count = 1 if asked is None or isinstance(asked, bool) else as_number(asked)
    return max(count or 0, 0)


def _prompts(prompt: Any, *, tokens: bool) -> list[Any]:
    """The prompts of a text completion; [None] = as the client sent it."""
    if not isinstance(prompt, list) or (tokens and prompt and not any(isinstance(one, (str, list)) for one in prompt)):
        return [None]
    texts = [one for one in prompt if isinstance(one, str) or (tokens and isinstance(one, list))]
    if not texts or len(texts) != len(prompt):
        raise UnmetDemand("This server takes a text as `prompt`, or a list of texts; no token ids.", "prompt")
    return [*texts]


def keeps_stop(call: EngineRequest, state: BackendState) -> bool:
    """Would this server end the thoughts at a word of `stop`, so that no answer comes?"""
    if not state.traits.stops_thoughts or "stop" not in call.fields or call.endpoint is not CHAT:
        return False
    if "include_stop_str_in_output" in call.fields or b"false" in bytes(call.fields.get("chat_template_kwargs", b"")):
        return False
    return state.capabilities(time.monotonic()).thinks is True and value_of(call.fields["stop"]) not in (
        None,
        [],
        "",
    )


def ask(call: EngineRequest, traits: EngineTraits, *, keeps_stop: bool = False) -> BackendBodies:
    """The bodies to send for this call. `keeps_stop`: its stop strings are looked for here. Raises Refused."""
    if not traits.checks_limits:
        _check_limits(call)
    fields, generates = call.fields, bool(call.endpoint.chunk_object)
    stops: tuple[str, ...] = ()
    if (keeps_stop or not traits.enforces_stop) and "stop" in fields:
        stops, fields = read_stops(fields["stop"]), _without(fields, "stop")
    if not traits.withholds_tools and "tools" in fields and value_of(fields.get("tool_choice")) == "none":
        fields = _without(fields, "tools", "tool_choice", "parallel_tool_calls")
    if not traits.integer_bias and "logit_bias" in fields:
        fields = {**fields, "logit_bias": _with_floats(fields["logit_bias"])}
    bodies = [fields]
    if generates:  # where stop strings are looked for, a stream has one answer
        bodies = split(
            fields,
            n=bool(stops) or not traits.many_choices,
            prompts=bool(stops) or not traits.list_prompts,
            tokens=traits.token_prompts,
        )
    in_parts = bool(stops) or len(bodies) > 1 or (not traits.stops_unstreamed and _asks_for_one(fields))
    assembled = generates and in_parts and not call.stream
    if assembled:
        bodies = [{**body, "stream": _TRUE, "stream_options": _INCLUDE_USAGE} for body in bodies]
    each = max(1, _answers_each(call.fields)) if len(bodies) > 1 and "n" not in bodies[0] else 1
    return BackendBodies(bodies, stops, assembled, each)


def _asks_for_one(fields: Fields) -> bool:
    """Is one answer asked for? The streams of several cannot be distinguished."""
    return value_of(fields.get("n")) in (None, 1) and not isinstance(value_of(fields.get("prompt")), list)


def _without(fields: Fields, *names: str) -> Fields:
    return {name: value for name, value in fields.items() if name not in names}


def _check_limits(call: EngineRequest) -> None:
    for name in call.endpoint.limits:
        limit = value_of(call.fields.get(name))
        if limit is not None and not is_limit(limit):
            raise InexpressibleRequest(f"`{name}` must be a whole number of at least 1.", name)


def _with_floats(raw: Raw) -> Raw:
    bias = value_of(raw)
    if not isinstance(bias, dict):
        return raw
    return Raw(_encode({token: float(v) if type(v) is int and abs(v) <= BIAS_MOST else v for token, v in bias.items()}))
