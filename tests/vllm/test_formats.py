"""A call reaches the client as a call, whichever format the model writes and whichever parser its vLLM runs."""

from __future__ import annotations

import pytest

from .asks import CALL
from .formats import ARGUMENTS, WRITTEN, Written
from .servers import VllmServer
from .turns import Called, client_on

CALLED: Called = [("get_weather", ARGUMENTS)]
WHOLE = ("", CALLED, ["tool_calls"])
PARSERS = tuple(dict.fromkeys(written.parser for written in WRITTEN.values()))
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
every_format = pytest.mark.parametrize("name", WRITTEN)

# Each reads the calls of the other and leaves the section's opener in the text.
OPENER_LEFT = {
    ("deepseek_v32", "deepseek_v4"): "<｜DSML｜function_calls>",
    ("deepseek_v4", "deepseek_v32"): "<｜DSML｜tool_calls>",
}
# A stream's first delta has named a call of a tool that nobody offered before anything else could be known.
MISNAMED = {("deepseek_v3", "deepseek_v31"): [("function", 'get_weather\n```json\n{"city": "Oslo"}\n```')]}


def entry(server: VllmServer, parser: str, written: Written) -> str:
    """The gateway's backend: this model under that parser."""
    return f"url: '{server.front_end(parser)}', tool_parser: {parser}, model: {written.model}"


def swallows(parser: str, *, stream: bool) -> bool:
    """vLLM's phi4_mini_json streams nothing at all where tools are offered."""
    return parser == "phi4_mini_json" and stream


def wanted(name: str, parser: str, *, stream: bool) -> tuple[str, Called, list[str]]:
    if (name, parser) in MISNAMED and stream:
        return "", MISNAMED[name, parser], ["tool_calls"]
    return OPENER_LEFT.get((name, parser), ""), CALLED, ["tool_calls"]


@every_format
@both_ways
async def test_with_its_parser_a_call_arrives_once(front_ends: VllmServer, name: str, stream: bool) -> None:
    written = WRITTEN[name]
    if swallows(written.parser, stream=stream):
        pytest.skip("see the next test")
    async with client_on({"a": entry(front_ends, written.parser, written)}, {"chat": "[a]"}) as client:
        turn = await client.ask("chat", written.text, stream=stream)
        assert sum(client.violations(kind) for kind in ("tool_call_as_text", "finish_reason", "nothing_said")) == 0
    assert turn.said == WHOLE


async def test_a_call_that_a_parser_never_streams_is_asked_for_again(front_ends: VllmServer) -> None:
    """vLLM reads a call on demand without that parser."""
    written, forced = WRITTEN["phi4_mini_json"], '[{"name": "get_weather", "parameters": {"city": "Oslo"}}]'
    async with client_on({"a": entry(front_ends, written.parser, written)}, {"chat": "[a]"}) as client:
        extra = {"vllm_xargs": {"script": written.text, "script_forced": forced}}
        turn = await client.ask("chat", written.text, stream=True, extra=extra)
        assert turn.said == WHOLE
        assert client.violations("nothing_said") == 1
        assert client.gateway.metric("gateway_adapted_total", alias="chat", kind="tool_call_forced") == 1


@every_format
@both_ways
async def test_with_a_wrong_parser_a_call_is_mended_or_had_elsewhere(
    front_ends: VllmServer, name: str, stream: bool
) -> None:
    """Each other parser, and behind it one that reads and streams this format."""
    written = WRITTEN[name]
    behind = WRITTEN["hermes"] if swallows(written.parser, stream=stream) else written
    wrong = [parser for parser in PARSERS if parser not in (written.parser, *written.also)]
    backends = {parser: entry(front_ends, parser, written) for parser in wrong}
    backends["right"] = entry(front_ends, behind.parser, written)
    async with client_on(backends, {parser: f"[{parser}, right]" for parser in wrong}) as client:
        turns = {parser: await client.ask(parser, written.text, stream=stream) for parser in wrong}
        for parser, turn in turns.items():
            if turn.backend == "right":
                found = client.violations("nothing_said", parser)
                failed = client.gateway.metric("gateway_attempts_total", backend=parser, outcome="failed")
                assert found + failed == 1, f"{parser} was left, and nothing says why"
    expected = {parser: wanted(name, parser, stream=stream) for parser in wrong}
    assert {parser: turn.said for parser, turn in turns.items()} == expected


@both_ways
async def test_a_call_that_a_wrong_parser_swallowed_is_never_a_good_turn(front_ends: VllmServer, stream: bool) -> None:
    """Hermes' JSON under qwen3_xml: 200, no content, no calls, finish_reason stop, 30 tokens. Where nobody else is
    there to be asked, the same backend is made to call; and when it swallows that too, the turn is counted."""
    written, text = WRITTEN["hermes"], CALL % "Oslo"
    async with client_on({"a": entry(front_ends, "qwen3_xml", written)}, {"chat": "[a]"}) as client:
        extra = {"vllm_xargs": {"script": text, "script_forced": WRITTEN["qwen3_xml"].text}}
        turn = await client.ask("chat", text, stream=stream, extra=extra)
        assert turn.said == WHOLE
        assert client.violations("nothing_said") == 1
        # two choices can't be asked for again
        both = await client.ask("chat", text, stream=stream, n=2)
        assert both.said == ("", [], ["stop", "stop"])
        assert client.violations("nothing_said") == 2


@both_ways
async def test_text_before_a_swallowed_call_is_counted(front_ends: VllmServer, stream: bool) -> None:
    """35 characters for 38 tokens, and finish_reason stop."""
    said = "Let me check the weather for you.\n\n" + CALL % "Oslo"
    backends = {"a": entry(front_ends, "qwen3_xml", WRITTEN["hermes"])}
    async with client_on(backends, {"chat": "[a]"}) as client:
        turn = await client.ask("chat", said, stream=stream)
        assert turn.said == ("Let me check the weather for you.", [], ["stop"])
        assert client.violations("swallowed") == 1


# -- no parser at all --------------------------------------------------------------------------------------------------


@both_ways
@every_format
async def test_without_a_parser_calls_are_mended_where_that_is_allowed(
    front_ends: VllmServer, name: str, stream: bool
) -> None:
    """The model's name alone tells how it writes a call."""
    written = WRITTEN[name]
    backends = {"a": f"url: '{front_ends.front_end('none')}', model: {written.model}"}
    async with client_on(backends, {"chat": "{use: [a], on_unsupported: mend}"}) as client:
        first = await client.ask("chat", "I look.\n\n" + written.text, stream=stream)
        again = await client.ask("chat", written.text, stream=stream)
        assert client.violations("tool_call_as_text") == (1 if name == "pythonic" else 2)
    if name == "pythonic":  # a list in a text is a list
        assert first.said == ("I look.\n\n" + written.text, [], ["stop"])
    else:
        assert first.said == ("I look.", CALLED, ["tool_calls"])
    assert again.said == WHOLE
    assert again.headers["x-gateway-adapted"] == "tools_as_text"
    assert (first.headers["x-gateway-attempts"], again.headers["x-gateway-attempts"]) == ("2", "1")


@both_ways
async def test_newlines_between_the_tags_of_a_call_are_mended_too(front_ends: VllmServer, stream: bool) -> None:
    text = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>"  # GLM-4.5
    backends = {"a": f"url: '{front_ends.front_end('none')}', model: GLM-4.5-Air"}
    async with client_on(backends, {"chat": "{use: [a], on_unsupported: mend}"}) as client:
        assert (await client.ask("chat", text, stream=stream)).said == WHOLE


@both_ways
async def test_without_a_parser_a_stripped_request_is_plain_chat(front_ends: VllmServer, stream: bool) -> None:
    backends = {"a": f"url: '{front_ends.front_end('none')}', model: Qwen3-32B"}
    async with client_on(backends, {"chat": "{use: [a], on_unsupported: strip}"}) as client:
        turn = await client.ask("chat", "Cold, I guess.", stream=stream)
    assert turn.said == ("Cold, I guess.", [], ["stop"])
    assert turn.headers["x-gateway-adapted"] == "tools_stripped"


@both_ways
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
async def test_without_a_parser_the_next_one_is_asked(front_ends: VllmServer, choice: object, stream: bool) -> None:
    written = WRITTEN["hermes"]
    backends = {
        "bare": f"url: '{front_ends.front_end('none')}', model: {written.model}",
        "right": entry(front_ends, "hermes", written),
    }
    async with client_on(backends, {"chat": "{use: [bare, right], on_unsupported: mend}"}) as client:
        for attempts in ("2", "1"):  # it is learned
            turn = await client.ask("chat", written.text, stream=stream, tool_choice=choice)
            assert turn.said == WHOLE
            assert (turn.backend, turn.headers["x-gateway-attempts"]) == ("right", attempts)
            assert turn.headers["x-gateway-routed"] == "incapable"
