"""What a 200 in one piece is taken for."""

from __future__ import annotations

import pytest

from gateway.domain.endpoints import CHAT, EMBEDDINGS
from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.policy import InspectionPolicy
from gateway.inspection.whole import read_whole
from tests.routing.parts import request

ASKED = request(EMBEDDINGS, input="x")


@pytest.mark.parametrize("data", ['[{"embedding":[0.5,-1]}]', ' [ {"embedding":"AAAAPw=="} ] ', "[]"])
def test_a_list_of_embeddings_is_an_answer(data: str) -> None:
    body = f'{{"object":"list","data":{data},"model":"m","usage":{{"prompt_tokens":3}}}}'.encode()
    answer = read_whole(body, ASKED)
    assert (answer.failure, answer.empty, answer.body) == (None, False, body)
    assert (answer.model, answer.usage) == ("m", {"prompt_tokens": 3})


@pytest.mark.parametrize(
    "body", [b"{}", b'{"data":null}', b'{"data":{"embedding":[1]}}', b'{"error":{"message":"no"}}']
)
def test_without_a_list_it_is_none(body: bytes) -> None:
    assert read_whole(body, ASKED).failure is not None


@pytest.mark.parametrize("value", [b'"\xf0\x9f"', b"1e999", b"1.10"], ids=["half a character", "too large", "a zero"])
def test_what_is_not_mended_keeps_its_bytes(value: bytes) -> None:
    """A token of log probabilities may be half a character: that is no reason to fail an answer that has to change."""
    message = b'{"role":"assistant","content":"<think>hm</think>hello"}'
    choice = b'{"index":0,"message":%b,"finish_reason":"stop","routed":%b}' % (message, value)
    answer = read_whole(b'{"model":"m","choices":[%b]}' % choice, request(CHAT))
    assert answer.failure is None
    assert b'"reasoning":"hm"' in answer.body
    assert b'"routed":' + value in answer.body


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("thoughts", [b'"hm"', b"null"])
@pytest.mark.parametrize("calls", [1, 2])
def test_calls_that_are_right_keep_the_bytes_of_the_answer(thoughts: bytes, calls: int) -> None:
    call = b'{"id":"c","type":"function","function":{"name":"f","arguments":"{\\"a\\": 1}"}}'
    message = b'{"role":"assistant","content":null,"refusal":null,"tool_calls":[%b],"reasoning":%b}'
    choice = b'{"index":0,"message":%b,"logprobs":null,"finish_reason":"tool_calls"}'
    body = b'{"model":"m","choices":[%b]}' % (choice % (message % (b",".join([call] * calls), thoughts)))
    asked = request(CHAT, tools=[TOOL])
    answer = read_whole(body, asked, InspectionPolicy(tools=OfferedTools([TOOL])))
    assert (answer.failure, answer.body) == (None, body)
