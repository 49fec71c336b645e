"""The server's own tokenizer, where it has an endpoint for that: how many tokens a prompt has, the tokens of a text,
and the text of tokens."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw

from gateway.domain.backend import BackendState
from gateway.domain.endpoints import COMPLETIONS
from gateway.domain.engine_traits import Count
from gateway.domain.request import NO_MEDIA, InferenceRequest
from gateway.domain.tokens import count_of
from gateway.domain.upstream import UpstreamClient
from gateway.engines.base import authorized
from gateway.large_bodies import LARGE, apart, apart_if_large
from gateway.transport.h1 import post_json

log = logging.getLogger("gateway.tokenize")

BUDGET = 2.0  # seconds in all; after that the estimate is used
ANSWER_MOST = 32 * 1024 * 1024  # bytes; the answer lists every token as a number

_OLD_NAME = "reasoning_content"

_encode = msgspec.json.Encoder().encode
_decode_any = msgspec.json.Decoder(Any).decode
_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode


async def count_tokens(state: BackendState, request: InferenceRequest) -> int | None:
    """The request's prompt tokens as `state`'s server counts them; None if it cannot be asked or does not answer in
    time. Prompts with images are not counted: the template's placeholders do not show an image's size. A server counts
    in the process that also answers the others, so each client's counts take turns. Raises nothing and does not change
    the backend's health, because an estimate can be used instead."""
    asked = partial(tokenize_body, state, request)
    count, body = _count_of(state, request), await apart_if_large(request.sender, request.prompt_bytes, asked)
    if count is None or body is None or state.client is None:
        return None
    headers = authorized([("content-type", "application/json")], state.backend)
    path = state.backend.root_path + count.path
    try:
        async with asyncio.timeout(BUDGET), state.counting.turn(request.sender):
            answer = await _ask(state.client, path, headers, body)
            if answer is None:
                return None
            read = partial(_token_count, answer, count.answer)
            return read() if len(answer) <= LARGE else await apart(request.sender, read)
    except Exception as failure:  # no failure of the count may fail the request itself
        log.debug("%s did not count a prompt: %s", state.name, failure or type(failure).__name__)
        return None


def tokenize_body(state: BackendState, request: InferenceRequest) -> bytes | None:
    """The question for `count_tokens`; None if the server cannot count this request, e.g. one with several prompts."""
    count = _count_of(state, request)
    if count is None or not _is_text(request):
        return None
    asked: dict[str, object] = {name: request.fields[name] for name in count.fields if name in request.fields}
    asked |= {name: Raw(value.encode()) for name, value in count.also}
    if "prompt" in asked:
        asked[count.prompt] = asked.pop("prompt")
    if count.thoughts is not None and _OLD_NAME.encode() in bytes(request.fields.get("messages", b"")):
        asked["messages"] = _renamed(request.fields["messages"], count.thoughts)
    if state.model is not None:
        asked["model"] = state.model
    return _encode(asked)


def _count_of(state: BackendState, request: InferenceRequest) -> Count | None:
    return state.traits.counts.of(request.endpoint.name)


def _renamed(messages: Raw, name: str) -> object:
    """The messages with earlier thoughts under `name`, where they have only their older one."""
    found = _decode_any(messages)
    for message in found if isinstance(found, list) else []:
        if isinstance(message, dict) and _OLD_NAME in message:
            message.setdefault(name, message.pop(_OLD_NAME))
    return found


def _is_text(request: InferenceRequest) -> bool:
    if request.endpoint.name == COMPLETIONS.name:
        prompt = request.fields.get("prompt")
        return prompt is not None and bytes(memoryview(prompt)[:1]) == b'"'
    return request.media is NO_MEDIA


async def _ask(client: UpstreamClient, path: str, headers: list[tuple[str, str]], body: bytes) -> bytes | None:
    response = await post_json(client, path, headers, Raw(body))
    try:
        return await response.read_all(ANSWER_MOST) if response.status == 200 else None
    finally:
        response.release()


def _token_count(answer: bytes, key: str) -> int | None:
    """The number of tokens in an answer; None if it has none. The tokens of a list are counted, and not decoded."""
    found = _decode_object(answer).get(key) if key else Raw(answer.strip())
    if found is None:
        return None
    if bytes(memoryview(found)[:1]) == b"[":
        return len(_decode_list(found)) or None
    return count_of(_decode_any(found)) or None
