"""What a backend cannot do as it was asked is asked of it otherwise, or of another, and the client is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from simulator import SimVllm
from tests.scripted import RawReply, raw_post
from tests.support import RunningGateway, running_gateway

pytestmark = pytest.mark.decided_both_ways

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]
TASK = "### Task:\nSuggest a title."
QWEN, DEEPSEEK, INSTRUCT = "Qwen3.6-35B-A3B", "DeepSeek-V4-Flash", "Qwen3-4B-Instruct-2507"
KEY = "webui-key"
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@asynccontextmanager
async def fleet(*sims: SimVllm, alias: str = "", more: str = "") -> AsyncIterator[RunningGateway]:
    """`sims` as the steps of the alias `chat`; `alias` = its further keys."""
    async with AsyncExitStack() as stack:
        lines = [f'  {sim.name}: {{url: "{await stack.enter_async_context(sim.serve(port=0))}"}}' for sim in sims]
        names = ", ".join(sim.name for sim in sims)
        text = "\n".join(["backends:", *lines, "aliases:", f"  chat: {{use: [{names}]{alias}}}", more])
        gateway = await stack.enter_async_context(running_gateway(text))
        await gateway.until_ready(*(sim.name for sim in sims))
        yield gateway


def vllm(name: str, model: str = QWEN, **more: Any) -> SimVllm:
    return SimVllm(name=name, served=[model], **more)


async def ask(gateway: RunningGateway, text: str = "hello", **more: Any) -> RawReply:
    body = {"model": "chat", "messages": [{"role": "user", "content": text}], **more}
    return await raw_post(gateway.url, body, "/v1/chat/completions", headers=[f"authorization: Bearer {KEY}"])


def got(sim: SimVllm) -> dict[str, Any]:
    """The body of its last chat."""
    body: dict[str, Any] = [r.json for r in sim.requests if r.path == "/v1/chat/completions"][-1]
    return body


@both_ways
async def test_forced_thinking_reaches_each_backend_in_its_own_words(stream: bool) -> None:
    a, b = vllm("a"), vllm("b", DEEPSEEK)
    async with fleet(a, b, alias=", thinking: off") as gateway:
        await ask(gateway, stream=stream, chat_template_kwargs={"thinking": True})
        assert got(a)["chat_template_kwargs"] == {"enable_thinking": False}
        gateway.gateway.fleet["a"].evidence.cool_down(60, 10**9)
        await ask(gateway, stream=stream)
        assert got(b)["chat_template_kwargs"] == {"thinking": False}


@both_ways
async def test_demanded_thinking_goes_where_it_can_be_had(stream: bool) -> None:
    a, b = vllm("a", INSTRUCT), vllm("b")
    async with fleet(a, b) as gateway:
        reply = await ask(gateway, stream=stream, think=True)
        assert (reply.headers["x-gateway-backend"], reply.headers["x-gateway-routed"]) == ("b", "incapable")
        assert got(b)["chat_template_kwargs"] == {"enable_thinking": True}
        assert "think" not in got(b)
        reply = await ask(gateway, stream=stream, reasoning_effort="high")
        assert reply.headers["x-gateway-backend"] == "a"
        assert reply.headers["x-gateway-adapted"] == "thinking_unavailable"


@both_ways
async def test_thinking_that_nobody_has_is_an_error_that_says_why(stream: bool) -> None:
    async with fleet(vllm("a", INSTRUCT)) as gateway:
        reply = await ask(gateway, stream=stream, thinking={"type": "enabled", "budget_tokens": 1024})
        error = reply.json["error"]
        assert (reply.status, error["code"]) == (400, "thinking_unsupported")
        assert "a cannot think: its model (Qwen3-Instruct) has no switch" in error["message"]


@both_ways
async def test_without_a_parser_the_tools_are_asked_as_text(stream: bool) -> None:
    a = vllm("a", tool_parser=None)
    async with fleet(a, alias=", on_unsupported: mend") as gateway:
        for _ in range(2):  # told by the backend, then known
            reply = await ask(gateway, stream=stream, tools=TOOLS)
            assert (reply.status, reply.headers["x-gateway-adapted"]) == (200, "tools_as_text")
            assert (got(a)["tool_choice"], got(a)["tools"]) == ("none", TOOLS)
        assert gateway.metric("gateway_adapted_total", alias="chat", kind="tools_as_text") == 2


CLIENTS = f"clients: {{webui: {{key: {KEY}, on_unsupported: strip, tasks: {{alias: small, thinking: off}}}}}}"


@both_ways
async def test_for_a_client_that_wants_it_the_tools_are_left_out(stream: bool) -> None:
    a = vllm("a", tool_parser=None)
    async with fleet(a, alias=", on_unsupported: refuse", more=CLIENTS.replace("small", "chat")) as gateway:
        reply = await ask(gateway, stream=stream, tools=TOOLS, parallel_tool_calls=True)
        assert (reply.status, reply.headers["x-gateway-adapted"]) == (200, "tools_stripped")
        assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(got(a))
        reply = await ask(gateway, stream=stream, tools=TOOLS, tool_choice="required")
        error = reply.json["error"]
        assert (error["code"], error["param"]) == ("tool_choice_unsupported", "tool_choice")


async def test_a_side_call_goes_to_the_alias_for_it_without_thinking() -> None:
    a, b = vllm("a"), vllm("b")
    more = f"  small: {{use: [b], thinking: on}}\n{CLIENTS}"
    async with fleet(a, b, more=more) as gateway:
        assert (await ask(gateway, TASK)).headers["x-gateway-alias"] == "small"
        assert got(b)["chat_template_kwargs"] == {"enable_thinking": False}
        assert (await ask(gateway)).headers["x-gateway-backend"] == "a"


async def test_an_engine_that_is_started_anew_with_the_flag_is_asked_again_at_once() -> None:
    a, b = vllm("a", tool_parser=None), vllm("b")
    async with fleet(a, b) as gateway:
        assert (await ask(gateway, tools=TOOLS)).headers["x-gateway-backend"] == "b"
        assert (await ask(gateway, tools=TOOLS)).headers["x-gateway-attempts"] == "1", "it is known"
        a.tool_parser = "qwen3_xml"
        gateway.gateway.fleet["a"].evidence.dead("connection refused", refused=True)
        gateway.gateway.fleet["a"].evidence.alive()
        assert (await ask(gateway, tools=TOOLS)).headers["x-gateway-backend"] == "a"
