"""What Ollama and litellm say wrongly is a failure of theirs, and raises nothing else. (What speaks OpenAI itself:
tests/inspection/test_shape_mistyped.py.)"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.cloud.errors import error_answer
from gateway.apps.cloud.stream import LiteLLMStream, embeddings_body, whole_body
from gateway.domain.endpoints import CHAT, COMPLETIONS, EMBEDDINGS
from gateway.domain.tokens import COUNT_MOST
from gateway.domain.upstream import ProtocolFailure, UpstreamFailure
from gateway.engines.ollama.calls import RequiredCallReader
from gateway.engines.ollama.engine import embeddings
from gateway.engines.ollama.reply import OllamaLine
from gateway.engines.ollama.reply import ReplyBuilder as OllamaReply
from gateway.engines.ollama.stream import OllamaStream, whole_line
from gateway.inspection.rewrite import ReplyIdentity
from gateway.inspection.stream_track import StreamTrack
from gateway.inspection.whole import read_whole
from gateway.transport.sse import Framer
from tests.engines.ollama_tools import required_call, tool
from tests.inspection.test_shape_mistyped import STREAMS, WHOLE, asked
from tests.mutations import dumped, mutated, mutated_one_of

# -- Ollama -----------------------------------------------------------------------------------------------------------

OLLAMA_CALL = {"function": {"name": "now", "arguments": {"city": "Oslo"}}}
COUNTS = {"prompt_eval_count": 9, "eval_count": 5, "total_duration": 5, "eval_duration": 3}
LINES: list[list[dict[str, Any]]] = [
    [
        {"message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": False},
        {"message": {"content": "hello", "tool_calls": [OLLAMA_CALL]}, "logprobs": [{"token": "x"}], "done": False},
        {"message": {"content": ""}, "done": True, "done_reason": "stop", **COUNTS},
    ],
    [{"response": "hello", "done": False}, {"response": "", "done": True, "done_reason": "length", **COUNTS}],
    [{"error": "no such model"}],
]
IGNORED: Callable[[OllamaLine], str | None] = lambda _: None  # noqa: E731  # a check that finds nothing


class Upstream:
    """A response whose body comes in these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.status = 200
        self.headers: Mapping[str, str] = {"content-type": "application/x-ndjson"}
        self._pieces = [*pieces]

    async def read_some(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    async def read_all(self, limit: int) -> bytes:
        return b"".join(self._pieces)

    def abort(self, reason: UpstreamFailure | None = None) -> None:
        self._pieces.clear()

    def release(self) -> None:
        pass


async def read(response: Any) -> bytes:
    parts = []
    try:
        while data := await response.read_some():
            parts.append(data)
    except UpstreamFailure:
        pass
    return b"".join(parts)


@given(st.sampled_from(LINES).flatmap(mutated_one_of), st.booleans(), st.booleans())
def test_no_line_of_ollama_raises(lines: list[bytes], chat: bool, demanded: bool) -> None:
    calls = RequiredCallReader(required_call([tool("now")])) if demanded else None
    reply = OllamaReply("r", "m", chat=chat, wants_usage=True)
    stream = OllamaStream(Upstream(*(line + b"\n" for line in lines)), reply, IGNORED, calls)
    for event in Framer().feed(asyncio.run(read(stream))):
        track = StreamTrack(asked(stream=True), ReplyIdentity())
        track.feed([event])
    try:
        body = OllamaReply("r", "m", chat=chat).whole(whole_line(lines[-1]))
    except UpstreamFailure:
        return
    read_whole(body, asked(CHAT if chat else COMPLETIONS, prompt="x"))
    assert all(0 <= count <= 2 * COUNT_MOST for count in json.loads(body)["usage"].values())


@given(mutated({"embeddings": [[0.5, 1.0], [2.0, 1e300]], "prompt_eval_count": 3}))
def test_no_embeddings_of_ollama_raise(body: bytes) -> None:
    with contextlib.suppress(UpstreamFailure):
        read_whole(embeddings(body, "m"), asked(EMBEDDINGS, input="x"))


@pytest.mark.parametrize("arguments", ["x", 5, [], True, 1.5], ids=repr)
def test_arguments_that_are_no_object_are_a_failure_of_ollama(arguments: Any) -> None:
    line = {"message": {"tool_calls": [{"function": {"name": "now", "arguments": arguments}}]}, "done": True}
    with pytest.raises(ProtocolFailure):
        OllamaReply("r", "m", chat=True).whole(whole_line(dumped(line)))


@pytest.mark.parametrize("count", [-1, 1.5, "5", None, [], 2**63, 10**400, True], ids=lambda c: str(c)[:10])
def test_a_mistaken_count_of_ollama_costs_nobody_the_answer(count: Any) -> None:
    line = {"message": {"content": "hello"}, "done": True, "prompt_eval_count": count, "eval_count": 3}
    body = json.loads(OllamaReply("r", "m", chat=True).whole(whole_line(dumped(line))))
    assert body["usage"] == {"prompt_tokens": 0, "completion_tokens": 3, "total_tokens": 3}


# -- litellm ----------------------------------------------------------------------------------------------------------


class Dumped:
    """An object of litellm's."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def model_dump(self, **_: Any) -> Any:
        return self._value


class Chunks:
    """litellm's iterator."""

    received_finish_reason = intermittent_finish_reason = "stop"

    def __init__(self, chunks: list[Any]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[Dumped]:
        for one in self._chunks:
            yield Dumped(one)

    async def __anext__(self) -> Dumped:
        if not self._chunks:
            raise StopAsyncIteration
        return Dumped(self._chunks.pop(0))


NAMES = ("MidStreamFallbackError", "Timeout", "APIConnectionError", "ContextWindowExceededError")
SDK = SimpleNamespace(exceptions=SimpleNamespace(**{name: type(name, (Exception,), {}) for name in NAMES}))


def loaded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return "x"


@given(st.sampled_from(STREAMS).flatmap(mutated_one_of), st.sampled_from(WHOLE).flatmap(mutated))
def test_no_object_of_litellm_raises(data: list[bytes], whole: bytes) -> None:
    stream = LiteLLMStream(SDK, Chunks([loaded(one) for one in data]), "r", "key")
    StreamTrack(asked(stream=True), ReplyIdentity()).feed(Framer().feed(asyncio.run(read(stream))))
    for made in (partial(whole_body, request_id="r"), embeddings_body):
        try:
            read_whole(made(Dumped(loaded(whole))), asked())
        except Exception as error:  # as the engine does
            error_answer(SDK, error, "key")
