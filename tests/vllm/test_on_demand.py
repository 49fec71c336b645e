"""`tool_choice` required and named: a call comes, whatever this parser of vLLM enforces, or the client is told why not.

`script_forced` is what the model says where vLLM forces a grammar on it. Each parser's grammar is vLLM's own; what
it does not allow ends the request with a 500."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from .asks import CALL, WEATHER
from .formats import WRITTEN
from .servers import VllmServer
from .test_formats import WHOLE, both_ways, entry
from .turns import client_on

NAMED = {"type": "function", "function": {"name": "get_weather"}}
LIST = '[{"name": "get_weather", "parameters": {"city": "Oslo"}}]'
either = pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])

# Read by vLLM without the parser: a list of calls, for a named one its arguments alone.
AS_JSON = ("pythonic", "functiongemma", "phi4_mini_json")
BEGINS = {"deepseek_v32": "\n\n", "deepseek_v4": "\n\n", "minimax_m2": "\n"}  # what the grammar wants before the call

NOW: Any = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
PROSE = "I would rather talk."


def forced(name: str, choice: Any) -> str:
    """A call in this format as vLLM's grammar allows it."""
    if name in AS_JSON:
        return LIST if choice == "required" else '{"city": "Oslo"}'
    return BEGINS.get(name, "") + WRITTEN[name].text


def saying(text: str, forced: str) -> dict[str, Any]:
    return {"vllm_xargs": {"script": text, "script_forced": forced}}


@pytest.mark.parametrize("name", [name for name in WRITTEN if name != "mistral"])
@either
@both_ways
async def test_a_call_on_demand_arrives_once(front_ends: VllmServer, name: str, choice: Any, stream: bool) -> None:
    written = WRITTEN[name]
    async with client_on({"a": entry(front_ends, written.parser, written)}, {"chat": "[a]"}) as client:
        turn = await client.ask("chat", forced(name, choice), stream=stream, tool_choice=choice)
        assert turn.said == WHOLE
        # vLLM says stop for a named one
        assert client.violations("finish_reason") == (0 if choice == "required" else 1)
        assert client.violations("tool_choice_ignored") == 0


@either
@both_ways
async def test_a_forced_call_that_vllm_then_does_not_read_is_an_error_and_counted(
    front_ends: VllmServer, choice: Any, stream: bool
) -> None:
    """Mistral's parser with any but Mistral's own tokenizer forces a JSON list, and returns it as content."""
    written, said = WRITTEN["mistral"], '[{"name": "get_weather", "arguments": {"city": "Oslo"}}]'
    async with client_on({"a": entry(front_ends, "mistral", written)}, {"chat": "[a]"}) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.ask("chat", said, stream=stream, tool_choice=choice)
        assert refused.value.code == "tool_choice_unsupported"
        assert client.violations("tool_choice_ignored") == 1


@either
@both_ways
async def test_a_parser_that_enforces_nothing_is_left_for_one_that_does(
    front_ends: VllmServer, choice: Any, stream: bool
) -> None:
    backends = {
        "a": entry(front_ends, "gemma4", WRITTEN["gemma4"]),
        "b": entry(front_ends, "hermes", WRITTEN["hermes"]),
    }
    async with client_on(backends, {"chat": "[a, b]", "alone": "[a]"}) as client:
        extra = saying(PROSE, CALL % "Oslo")
        turn = await client.ask("chat", PROSE, stream=stream, tool_choice=choice, extra=extra)
        assert turn.said == WHOLE
        assert (turn.backend, turn.headers["x-gateway-routed"]) == ("b", "incapable")
        assert client.violations("tool_choice_ignored") == 1
        with pytest.raises(openai.BadRequestError) as refused:
            await client.ask("alone", PROSE, stream=stream, tool_choice=choice)
        assert refused.value.code == "tool_choice_unsupported"
        assert client.violations("tool_choice_ignored") == 2


@both_ways
async def test_a_call_of_another_tool_than_the_named_one_is_not_passed_on(front_ends: VllmServer, stream: bool) -> None:
    other = "<|tool_call>call:now{}<tool_call|>"
    backends = {
        "a": entry(front_ends, "gemma4", WRITTEN["gemma4"]),
        "b": entry(front_ends, "hermes", WRITTEN["hermes"]),
    }
    async with client_on(backends, {"chat": "[a, b]"}) as client:
        extra = saying(other, CALL % "Oslo")
        turn = await client.ask("chat", other, stream=stream, tools=(WEATHER, NOW), tool_choice=NAMED, extra=extra)
    assert turn.said == WHOLE
    assert turn.backend == "b"


@either
@both_ways
async def test_a_call_on_demand_comes_after_the_thoughts(front_ends: VllmServer, choice: Any, stream: bool) -> None:
    backends = {"a": f"url: '{front_ends.front_end('hermes', 'qwen3')}', tool_parser: hermes, model: Qwen3-32B"}
    async with client_on(backends, {"chat": "[a]"}) as client:
        text = "<think>hm</think>" + CALL % "Oslo"
        turn = await client.ask("chat", text, stream=stream, tool_choice=choice)
    assert turn.reasoning == "hm"
    assert turn.said == WHOLE


@either
@both_ways
async def test_thoughts_that_use_up_the_answer_end_it_by_its_length(
    front_ends: VllmServer, choice: Any, stream: bool
) -> None:
    """vLLM's grammar begins after the thoughts, so that even required can end in nothing but them."""
    backends = {"a": f"url: '{front_ends.front_end('hermes', 'qwen3')}', tool_parser: hermes, model: Qwen3-32B"}
    async with client_on(backends, {"chat": "[a]"}) as client:
        text = "<think>" + "so much to think of " * 20
        turn = await client.ask("chat", text, stream=stream, tool_choice=choice, max_tokens=10)
        assert turn.reasoning.startswith("so much")
        assert turn.said == ("", [], ["length"])
        assert client.violations("reasoning_cut") == 1
