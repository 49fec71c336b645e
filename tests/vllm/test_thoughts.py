"""Thoughts come in `reasoning` and the answer in `content`, with each reasoning parser of a real vLLM and with none."""

from __future__ import annotations

import pytest

from .asks import CALL
from .formats import THINKERS, WRITTEN
from .servers import VllmServer
from .test_formats import CALLED, WHOLE, both_ways
from .turns import client_on

TEXT = {
    **dict.fromkeys(("qwen3", "deepseek_r1", "deepseek_v4"), "<think>hm</think>Hello there"),
    "gemma4": "<|channel>thought\nhm<channel|>Hello there",
    "mistral": "[THINK]hm[/THINK]Hello there",
}
THOUGHT = ("hm", "Hello there", ["stop"])
every_parser = pytest.mark.parametrize("parser", THINKERS)


def entry(server: VllmServer, parser: str, reasoning: str = "none", *, model: str = "", tools: str = "none") -> str:
    declared = f", tool_parser: {tools}" if tools != "none" else ""
    return f"url: '{server.front_end(tools, parser)}', model: {model or THINKERS[reasoning]}{declared}"


@every_parser
@both_ways
async def test_with_its_parser_thoughts_are_in_their_field(front_ends: VllmServer, parser: str, stream: bool) -> None:
    async with client_on({"a": entry(front_ends, parser, parser)}, {"chat": "[a]"}) as client:
        turn = await client.ask("chat", TEXT[parser], stream=stream, tools=None)
    assert (turn.reasoning, turn.content, turn.finishes) == THOUGHT


@every_parser
@both_ways
async def test_without_a_parser_thoughts_in_the_text_are_split_from_it(
    front_ends: VllmServer, parser: str, stream: bool
) -> None:
    """Not where the marks are special tokens, which vLLM leaves out of the text when no parser wants them."""
    async with client_on({"a": entry(front_ends, "none", parser)}, {"chat": "[a]"}) as client:
        turn = await client.ask("chat", TEXT[parser], stream=stream, tools=None)
        lost = {"gemma4": "thought\nhmHello there", "mistral": "hmHello there"}
        if parser in lost:
            assert (turn.reasoning, turn.content) == ("", lost[parser])
            return
        assert (turn.reasoning, turn.content, turn.finishes) == THOUGHT
        assert client.violations("reasoning_as_text") == 1


@every_parser
@both_ways
async def test_without_a_parser_thoughts_before_a_call_are_split_too(
    front_ends: VllmServer, parser: str, stream: bool
) -> None:
    """A tool parser that wants special tokens in the text gets those of the thoughts with them."""
    text = TEXT[parser].replace("Hello there", "") + CALL % "Oslo"
    async with client_on({"a": entry(front_ends, "none", parser, tools="hermes")}, {"chat": "[a]"}) as client:
        turn = await client.ask("chat", text, stream=stream)
    assert turn.reasoning == "hm"
    assert turn.said == WHOLE


@pytest.mark.parametrize("parser", ["qwen3", "deepseek_r1", "deepseek_v4"])
@both_ways
async def test_an_answer_without_tags_is_all_thoughts_and_counted(
    front_ends: VllmServer, parser: str, stream: bool
) -> None:
    """vLLM: content null, finish_reason stop, all of it in `reasoning`."""
    async with client_on({"a": entry(front_ends, parser, parser)}, {"chat": "[a]"}) as client:
        turn = await client.ask("chat", "Hello there", stream=stream, tools=None)
        assert (turn.reasoning, turn.content, turn.finishes) == ("Hello there", "", ["stop"])
        assert client.violations("nothing_said") == 1


@pytest.mark.parametrize("parser", ["qwen3", "deepseek_r1"])
@both_ways
async def test_a_call_lost_in_thoughts_is_found_there(front_ends: VllmServer, parser: str, stream: bool) -> None:
    """A model that writes no tags under such a parser, and with tools: the call is taken for a thought. (qwen3's parser
    ends thoughts at a <tool_call>, so there it takes another format.)"""
    written = WRITTEN["llama3_json"]
    backends = {
        "a": entry(front_ends, parser, model=written.model, tools="llama3_json"),
        "b": entry(front_ends, "none", model=written.model, tools="llama3_json"),
    }
    async with client_on(backends, {"chat": "[a, b]"}) as client:
        turn = await client.ask("chat", written.text, stream=stream)
        assert (turn.calls, turn.content, turn.finishes) == (CALLED, "", ["tool_calls"])
        assert (turn.backend, client.violations("nothing_said"), client.violations("tool_call_as_text")) == ("a", 0, 1)


# -- the switch --------------------------------------------------------------------------------------------------------

SAID = [
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"think": False},
    {"thinking": {"type": "disabled"}},
    {"reasoning_effort": "none"},
]


@pytest.mark.parametrize("said", SAID, ids=lambda said: next(iter(said)))
@pytest.mark.parametrize("parser", ["qwen3", "deepseek_v4"])
async def test_thinking_is_switched_off_in_the_words_of_the_model(
    front_ends: VllmServer, parser: str, said: dict[str, object]
) -> None:
    """Untagged text is the answer when the template and vLLM's parser know that it does not think."""
    aliases = {"chat": "[a]", "never": "{use: [a], thinking: off}"}
    async with client_on({"a": entry(front_ends, parser, parser)}, aliases) as client:
        turn = await client.ask("chat", "Hello there", stream=False, tools=None, extra=said)
        assert (turn.reasoning, turn.content) == ("", "Hello there")
        turn = await client.ask("never", "Hello there", stream=True, tools=None)
        assert (turn.reasoning, turn.content) == ("", "Hello there")


async def test_a_model_that_thinks_when_told_to_is_told_to(front_ends: VllmServer) -> None:
    """Its template closes the thoughts in the prompt where they are off, and the prompt is longer for it."""
    async with client_on({"a": entry(front_ends, "qwen3", "qwen3")}, {"on": "{use: [a], thinking: on}"}) as client:
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        turn = await client.ask("on", "hm</think>Hello there", stream=False, tools=None, extra=off)
    assert (turn.reasoning, turn.content) == ("hm", "Hello there")
