"""Counts a prompt's tokens with vLLM's own tokenizer (`/tokenize`)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
from msgspec import Raw

from gateway.domain.backend import BackendState
from gateway.domain.request import CHAT, COMPLETIONS, NO_MEDIA, InferenceRequest
from gateway.domain.upstream import Client
from gateway.domain.usage import count_of
from gateway.engines.base import authorized
from gateway.transport.client import post_json

log = logging.getLogger("gateway.tokenize")

BUDGET = 2.0  # seconds in all; after that the estimate is used
ANSWER_MOST = 32 * 1024 * 1024  # bytes; the answer lists every token as a number

# The fields of a request that vLLM's /tokenize knows and that change the prompt.
_FIELDS = {
    CHAT.name: (
        "messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt",
        "continue_final_message", "add_special_tokens",
    ),
    COMPLETIONS.name: ("prompt", "add_special_tokens"),
}  # fmt: skip

_OLD_NAME = "reasoning_content"

_encode = msgspec.json.Encoder().encode
_decode_any = msgspec.json.Decoder(Any).decode


class _Counted(msgspec.Struct):
    count: int


_decode = msgspec.json.Decoder(_Counted).decode


async def count_tokens(state: BackendState, request: InferenceRequest) -> int | None:
    """The request's prompt tokens as `state`'s vLLM counts them; None if it cannot be asked or does not answer in time.
    Prompts with images are not counted: the template's placeholders do not show an image's size. Raises nothing and
    does not change the backend's health, because an estimate can be used instead."""
    body = tokenize_body(state, request)
    if body is None or state.client is None:
        return None
    headers = authorized([("content-type", "application/json")], state.backend)
    path = state.backend.root_path + "/tokenize"
    try:
        async with asyncio.timeout(BUDGET):
            return await _ask(state.client, path, headers, body)
    except Exception as failure:  # no failure of the count may fail the request itself
        log.debug("%s did not count a prompt: %s", state.name, failure or type(failure).__name__)
        return None


def tokenize_body(state: BackendState, request: InferenceRequest) -> bytes | None:
    """The body for `/tokenize`; None if it cannot count this request, e.g. one with several prompts."""
    fields = _FIELDS.get(request.endpoint.name)
    if not state.traits.counts_prompts or fields is None or not _is_text(request):
        return None
    asked: dict[str, object] = {name: request.fields[name] for name in fields if name in request.fields}
    if _OLD_NAME.encode() in bytes(request.fields.get("messages", b"")):
        asked["messages"] = _renamed(request.fields["messages"])
    if state.model is not None:
        asked["model"] = state.model
    return _encode(asked)


def _renamed(messages: Raw) -> object:
    """The messages with earlier thoughts under `reasoning`: vLLM 0.32 renders both names in a chat, but counts only
    this."""
    found = _decode_any(messages)
    for message in found if isinstance(found, list) else []:
        if isinstance(message, dict) and _OLD_NAME in message:
            message.setdefault("reasoning", message.pop(_OLD_NAME))
    return found


def _is_text(request: InferenceRequest) -> bool:
    if request.endpoint.name == COMPLETIONS.name:
        prompt = request.fields.get("prompt")
        return prompt is not None and bytes(memoryview(prompt)[:1]) == b'"'
    return request.media is NO_MEDIA


async def _ask(client: Client, path: str, headers: list[tuple[str, str]], body: bytes) -> int | None:
    response = await post_json(client, path, headers, Raw(body))
    try:
        if response.status != 200:
            return None
        return count_of(_decode(await response.read_all(ANSWER_MOST)).count) or None
    finally:
        response.release()
