"""A server's tokens of a text and its text of tokens, asked and answered in vLLM's words, whatever the server's are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw

from gateway.domain.backend import BackendState
from gateway.domain.body import UNREADABLE, value_of
from gateway.domain.engine_traits import Tokenizer
from gateway.domain.upstream import ProtocolFailure, Response, read_beginning, read_counted
from gateway.engines.base import authorized
from gateway.engines.outgoing import JSON, NOT_THE_CLIENTS
from gateway.engines.tokenize import ANSWER_MOST
from gateway.large_bodies import LARGE, apart
from gateway.transport.h1 import post_json

_encode = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
ERROR_MOST = 64 * 1024  # bytes of an error's body that are read

_decode_pieces = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_NULL, _TRUE = Raw(b"null"), Raw(b"true")
_OPENING_BRACKET, _QUOTE = ord("["), ord('"')

Fields = Mapping[str, Raw]


class TokenizeError(Exception):
    """The server's answer with another status than 200. `body`: its beginning."""

    def __init__(self, response: Response, body: bytes) -> None:
        super().__init__(response.status)
        self.status, self.headers, self.body = response.status, response.headers, body


class TokenClient:
    """Asks one server for one client. `count` is called with the size of each part of an answer, and may raise. The
    methods raise `UpstreamFailure`, `TokenizeError`."""

    def __init__(self, state: BackendState, sender: str, count: Callable[[int], object]) -> None:
        self._state, self._sender, self._count = state, sender, count
        self._tokenizer = state.traits.counts.tokenizer or Tokenizer()

    async def tokens(self, fields: Fields) -> bytes:
        """`{"count", "max_model_len", "tokens", "token_strs"}` of a request with `prompt` or `messages`."""
        tokenizer = self._tokenizer
        if "messages" in fields and tokenizer.renders is not None:
            asked = {name: value for name, value in fields.items() if name not in ("add_special_tokens", "prompt")}
            text = _text_in(await self._ask(tokenizer.renders, asked), "prompt")
            fields = {**fields, "prompt": text}
            del fields["messages"]
        answer = await self._ask("/tokenize", _worded(fields, tokenizer))
        read = partial(_tokens_answer, answer, tokenizer, value_of(fields.get("return_token_strs")) is True)
        told = read() if len(answer) <= LARGE else await apart(self._sender, read)
        window = self._state.reported.context or self._state.backend.context
        return _encode({"count": 0, "max_model_len": window, "tokens": _NULL, "token_strs": None, **told})

    async def text(self, fields: Fields) -> bytes:
        """`{"prompt"}` of a request with `tokens`."""
        answer = await self._ask("/detokenize", fields)
        return _encode({"prompt": _text_in(answer, self._tokenizer.text)})

    async def _ask(self, path: str, fields: Fields) -> bytes:
        state = self._state
        assert state.client is not None
        sent: dict[str, object] = {name: value for name, value in fields.items() if name not in NOT_THE_CLIENTS}
        sent.pop("model", None)
        if state.model is not None:
            sent["model"] = state.model
        response = await post_json(
            state.client, state.backend.root_path + path, authorized([JSON], state.backend), sent
        )
        try:
            if response.status != 200:
                raise TokenizeError(response, state.backend.without_key(await read_beginning(response, ERROR_MOST)))
            return await read_counted(response, ANSWER_MOST, self._count)
        finally:
            response.release()


def _worded(fields: Fields, tokenizer: Tokenizer) -> dict[str, Raw]:
    """The request in the server's words."""
    words = {
        "prompt": tokenizer.prompt,
        "add_special_tokens": tokenizer.special,
        "return_token_strs": tokenizer.strings,
    }
    worded = {words.get(name, name): value for name, value in fields.items()}
    worded.pop("", None)
    if "prompt" in fields:
        worded.setdefault(tokenizer.special, _TRUE)  # vLLM's default
    return worded


def _tokens_answer(answer: bytes, tokenizer: Tokenizer, strings: bool) -> dict[str, Any]:
    try:
        told: dict[str, Any] = dict(_decode_object(answer))
        tokens = told["tokens"]
        if memoryview(tokens)[0] != _OPENING_BRACKET:
            raise ValueError
        if tokenizer.pieces and strings:
            pieces = _decode_pieces(tokens)
            told["tokens"], told["token_strs"] = [one["id"] for one in pieces], [_piece(one["piece"]) for one in pieces]
        if "count" not in told:
            told["count"] = len(msgspec.json.decode(tokens, type=list[Raw]))
    except (*UNREADABLE, KeyError, ValueError, TypeError):
        raise ProtocolFailure("answered without `tokens`") from None
    return told


def _piece(piece: Raw) -> object:
    """A piece that is no text of its own comes as its bytes."""
    value = value_of(piece)
    return bytes(value).decode("utf-8", "replace") if isinstance(value, list) else value


def _text_in(answer: bytes, name: str) -> Raw:
    try:
        text = _decode_object(answer)[name]
    except (*UNREADABLE, KeyError):
        raise ProtocolFailure(f"answered without `{name}`") from None
    if memoryview(text)[0] != _QUOTE:
        raise ProtocolFailure(f"answered without `{name}`")
    return text
