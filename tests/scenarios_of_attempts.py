"""Scenarios in which something is seen of a backend, or of an attempt, after its requests were decided
(tests/proxy/test_decided_ahead.py runs them)."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.domain.forms import Forms
from gateway.domain.health_state import State
from tests.proxy.test_decisions_random import TOOLS, chunk
from tests.scenarios import House, said, scenario
from tests.scripted import SSE_HEAD, Script, Turn, chunked, json_answer

MESSAGES = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hello"}]


def refusing(message: str, times: int) -> Script:
    """A script that refuses so many requests with this message, and then answers."""
    left = times

    async def script(turn: Turn) -> None:
        nonlocal left
        if left:
            left -= 1
            await turn.send(json_answer({"error": {"message": message, "code": 400}}, "400 Bad Request"))
        else:
            await said({"role": "assistant", "content": "Twelve."})(turn)

    return script


@scenario("tool_parser: hermes, context: 4096")
async def a_limit_of_many_digits_is_clamped(h: House) -> None:
    await h.ask(times=2, max_tokens=5)
    await h.ask(max_tokens=10**18)


@scenario()
async def a_role_that_is_not_read_is_translated(h: House) -> None:
    await h.ask(times=2)
    await h.ask(times=2, messages=MESSAGES)


@scenario(alias="{use: [[a, b]], balance: round_robin}")
async def a_backend_that_was_seen_to_lack_tools_is_left(h: House) -> None:
    await h.ask(times=3, tools=TOOLS)
    state = h.gateway.gateway.fleet["a"]
    state.facts.learn_lack("tools", asyncio.get_running_loop().time())
    await h.ask(times=3, tools=TOOLS)


@scenario(alias="{use: [[a, b]], balance: round_robin}")
async def a_suspect_backend_comes_last(h: House) -> None:
    await h.ask(times=3)
    h.gateway.gateway.fleet["a"].health.state = State.SUSPECT
    await h.ask(times=3)


@scenario("tool_parser: hermes, context: 4096")
async def a_prompt_goes_where_it_fits(h: House) -> None:
    await h.ask(times=2)
    await h.ask(messages=[{"role": "user", "content": "word " * 9000}])


@scenario(alias="[a]")
async def an_empty_answer_is_asked_for_as_a_call(h: House) -> None:
    await h.ask(times=2, tools=TOOLS)
    h.a.play(said({"role": "assistant", "content": None}))
    await h.ask(tools=TOOLS)


@scenario(alias="{use: [[a, b]], balance: round_robin, resume: true, params: {max_tokens: 40}}")
async def a_stream_goes_on_at_a_replica(h: House) -> None:
    async def breaks(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(chunk({"role": "assistant", "content": "Twelve of"})))
        turn.close()

    await h.ask(times=4, stream=True)
    h.a.play(breaks)
    await h.ask(times=2, stream=True)


@scenario(alias="[a]")
async def a_refused_length_is_asked_for_again_with_less(h: House) -> None:
    await h.ask(times=2, max_tokens=3000)
    words = (
        "This model's maximum context length is 2048 tokens. However, you requested 3012 tokens (12 in the messages, "
    )
    h.a.play(refusing(words + "3000 in the completion). Please reduce the length of the messages or completion.", 1))
    await h.ask(max_tokens=3000)


@scenario("engine: openai", alias="[a]")
async def a_refused_name_of_the_limit_is_changed(h: House) -> None:
    await h.ask(times=2, max_tokens=300)
    words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    h.a.play(refusing(words, 1))
    await h.ask(max_tokens=300)


@scenario(more="clients: {webui: {key: k-webui-long-enough, tasks: {alias: other}}}")
async def a_chat_behind_a_task_goes_to_its_own_alias(h: House) -> None:
    h.headers["authorization"] = "Bearer k-webui-long-enough"
    task = [{"role": "user", "content": "### Task:\nGenerate a concise title.\n### Output:\nJSON"}]
    await h.ask(times=2, messages=task)
    await h.ask(times=2)


@scenario("tool_parser: hermes, context: 4096", alias="{use: [a, b], params: {max_tokens: 9000}}")
async def a_limit_of_the_alias_is_clamped_for_each_prompt(h: House) -> None:
    h.trait(clamps_since=None)
    await h.ask(times=3, messages=[{"role": "user", "content": "word " * 1400}])
    await h.ask(times=2)


@scenario()
async def only_the_named_tool_is_offered(h: House) -> None:
    h.trait(named_calls="only_tool")
    choice = {"type": "function", "function": {"name": "look"}}
    await h.ask(times=3, tools=TOOLS, tool_choice=choice)
    other = {"type": "function", "function": {"name": "go", "parameters": {"type": "object", "properties": {}}}}
    await h.ask(times=2, tools=[*TOOLS, other], tool_choice=choice)


@scenario()
async def a_limit_goes_by_the_name_that_is_read(h: House) -> None:
    h.trait(forms=Forms(limit="max_completion_tokens"))
    for limit in (5, 5, 700, None):
        await h.ask(max_tokens=limit)


@scenario()
async def values_are_put_in_the_types_that_are_read(h: House) -> None:
    h.trait(forms=Forms(strict=True))
    compact = [{"role": "user", "content": "hello"}]
    for temperature in (0.5, 0.5, "0.5"):
        await h.ask(messages=compact, temperature=temperature)
    await h.ask(messages=[*compact, {"role": "assistant", "content": None}, *compact], temperature=0.5)


@scenario("tool_parser: hermes, kv_pool: 9000")
async def answers_share_the_memory_that_prompts_leave(h: House) -> None:
    await h.ask(times=3, max_tokens=50)
    await h.ask(times=3)
    await h.ask(times=2, messages=[{"role": "user", "content": "word " * 3000}])


@scenario("tool_parser: hermes, context: 4096")
async def a_limit_is_set_where_the_server_has_a_short_one(h: House) -> None:
    h.trait(short_answers=True, clamps_since=None)
    await h.ask(times=3)
    await h.ask(times=2, messages=[{"role": "user", "content": "word " * 1200}])


@scenario(alias="[a]")
async def nothing_may_be_missing_to_a_text_that_is_continued(h: House) -> None:
    h.a.play(said({"role": "assistant", "content": None}))
    more: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}
    await h.ask(times=3, messages=[{"role": "user", "content": "Go"}, {"role": "assistant", "content": "on"}], **more)
