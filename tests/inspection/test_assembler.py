"""The chunks of a stream make the whole answer."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.endpoints import CHAT, COMPLETIONS, Endpoint
from gateway.domain.upstream import ErrorTold, PoolFull, ProtocolFailure, TooLarge, UpstreamFailure
from gateway.inspection.assembler import Assembler, read_object
from gateway.inspection.known_errors import POOL_FULL

MUCH = 1_000_000


def assembled(*chunks: Any, endpoint: Endpoint = CHAT, most: int = MUCH) -> Any:
    assembler = Assembler(endpoint, most)
    for chunk in chunks:
        assembler.add(read_object(msgspec.json.encode(chunk)))
    return msgspec.json.decode(assembler.finish())


def chunk(delta: Any, finish: str | None = None, index: int = 0, **further: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish, **further}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice]}


def call(index: int | None, arguments: str, **further: Any) -> dict[str, Any]:
    function = {"name": further.pop("name"), "arguments": arguments} if "name" in further else {"arguments": arguments}
    return {**({} if index is None else {"index": index}), **further, "function": function}


def test_text_thoughts_usage_and_the_end_are_kept() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    answer = assembled(
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning": "h"}),
        chunk({"reasoning": "m"}),
        chunk({"content": "Grüße "}),
        chunk({"content": "😀"}),
        chunk({}, "length"),
        {**chunk({}), "choices": [], "usage": usage},
    )
    assert answer == {
        "id": "c1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Grüße 😀", "reasoning": "hm"},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": usage,
    }


def test_calls_in_parts_become_whole_calls() -> None:
    answer = assembled(
        chunk({"tool_calls": [call(0, "", id="a", type="function", name="f")]}),
        chunk({"tool_calls": [call(0, '{"x":')]}),
        chunk({"tool_calls": [call(1, "{}", id="b", type="function", name="g")]}),
        chunk({"tool_calls": [call(0, "1}")]}),
        chunk({}, "tool_calls"),
    )
    message = answer["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]


def test_calls_without_an_index_are_calls_of_their_own() -> None:
    calls = [call(None, "{}", name="f"), call(None, "{}", name="f")]
    message = assembled(chunk({"tool_calls": calls}, "tool_calls"))["choices"][0]["message"]
    assert len(message["tool_calls"]) == 2


def test_logprobs_of_all_events_are_joined() -> None:
    one, two = ({"token": token, "logprob": -1.0, "top_logprobs": []} for token in "ab")
    answer = assembled(
        chunk({"content": "a"}, logprobs={"content": [one], "refusal": None}),
        chunk({"content": "b"}, logprobs={"content": [two], "refusal": None}),
        chunk({}, "stop"),
    )
    assert answer["choices"][0]["logprobs"] == {"content": [one, two], "refusal": None}


def test_choices_are_in_the_order_of_their_index() -> None:
    answer = assembled(
        chunk({"content": "second"}, index=1), chunk({"content": "first"}), chunk({}, "stop", 1), chunk({}, "stop")
    )
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["first", "second"]


def test_a_text_completion_has_a_text() -> None:
    def part(text: str, finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": {"tokens": [text]}}
        return {"id": "c", "object": "text_completion", "model": "m", "choices": [choice]}

    answer = assembled(part("a", None), part("b", "stop"), endpoint=COMPLETIONS)
    assert answer["object"] == "text_completion"
    logprobs = {"tokens": ["a", "b"]}
    assert answer["choices"] == [{"index": 0, "text": "ab", "logprobs": logprobs, "finish_reason": "stop"}]


@pytest.mark.parametrize("error", ["died", {"message": "died"}])
def test_an_error_event_is_a_failure(error: Any) -> None:
    with pytest.raises(UpstreamFailure, match="died"):
        assembled(chunk({"content": "a"}), {"error": error})


@pytest.mark.parametrize(
    "chunks", [[], [chunk({"content": "a"})], [chunk({}, "stop"), chunk({"content": "a"}, index=1)]]
)
def test_an_answer_without_its_end_is_a_failure(chunks: list[Any]) -> None:
    with pytest.raises(UpstreamFailure, match="finish_reason"):
        assembled(*chunks)


@pytest.mark.parametrize("event", [b"[1]", b"not json", b"\xff", b'{"choices":[1]}', b"[" * 5000])
def test_what_is_no_chunk_is_a_failure(event: bytes) -> None:
    with pytest.raises(ProtocolFailure):
        read_object(event)


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x" * 100},
        {"tool_calls": [call(0, "x" * 100)]},
        {"tool_calls": [call(None, "")]},
        {"x" * 100: "y" * 100},
    ],
)
def test_what_is_kept_is_bounded(delta: Any) -> None:
    with pytest.raises(TooLarge):
        assembled(*[chunk(delta)] * 1000, most=10_000)


_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
_NAMES = ("content", "reasoning", "tool_calls", "role", "index", "function", "arguments", "name", "id")


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4)


_DELTAS = _objects(_JSON | st.lists(_objects(_JSON | _objects(_JSON)), max_size=2))


@given(st.lists(_DELTAS, max_size=4))
def test_no_delta_breaks_it(deltas: list[Any]) -> None:
    """Wrong types are left to the check of the whole answer, or are failures of the backend."""
    with suppress(UpstreamFailure):
        assembled(*map(chunk, deltas), chunk({}, "stop"))


@pytest.mark.parametrize(("said", "kind"), [(POOL_FULL, PoolFull), ("something else", ErrorTold)])
def test_an_error_event_is_a_failure_and_a_full_memory_one_of_its_own(said: str, kind: type[Exception]) -> None:
    with pytest.raises(UpstreamFailure) as raised:
        read_object(msgspec.json.encode({"error": {"message": said}}))
    assert type(raised.value) is kind
