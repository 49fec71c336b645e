"""What a backend's refusal teaches: tools, pictures, endpoints, windows. The next request does not even try."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from simulator import SimVllm
from tests.scripted import RawReply, raw_post
from tests.support import RunningGateway, from_clients, running_gateway

pytestmark = pytest.mark.decided_both_ways

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]
PICTURE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
ASK: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@asynccontextmanager
async def fleet(*sims: SimVllm, more: str = "") -> AsyncIterator[RunningGateway]:
    """`sims` as the steps of the alias `chat`; `more` = further keys of every backend."""
    async with AsyncExitStack() as stack:
        lines = [
            f'  {sim.name}: {{url: "{await stack.enter_async_context(sim.serve(port=0))}", model: m{more}}}'
            for sim in sims
        ]
        names = ", ".join(sim.name for sim in sims)
        text = "\n".join(["backends:", *lines, "aliases:", f"  chat: {{use: [{names}]}}"])
        gateway = await stack.enter_async_context(running_gateway(text))
        await gateway.until_ready(*(sim.name for sim in sims))
        yield gateway


def vllm(name: str, **more: Any) -> SimVllm:
    return SimVllm(name=name, served=["m"], **more)


async def ask(gateway: RunningGateway, *, path: str = "/v1/chat/completions", **more: Any) -> RawReply:
    return await raw_post(gateway.url, {**ASK, **more}, path)


def unharmed(gateway: RunningGateway, name: str) -> None:
    health = gateway.gateway.fleet[name].health
    assert (health.state, health.fails) == (State.READY, 0)


# -- tools ------------------------------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize(
    "choice", [None, "auto", "required", {"type": "function", "function": {"name": "get_weather"}}]
)
async def test_a_missing_tool_parser_is_learned(choice: Any, stream: bool) -> None:
    a, b = vllm("a", tool_parser=None), vllm("b", tool_parser="hermes")
    asked: dict[str, Any] = {"stream": stream, "tools": TOOLS} | ({} if choice is None else {"tool_choice": choice})
    async with fleet(a, b) as gateway:
        for attempts in ("2", "1"):
            reply = await ask(gateway, **asked)
            assert (reply.headers["x-gateway-backend"], reply.headers["x-gateway-routed"]) == ("b", "incapable")
            assert reply.headers["x-gateway-attempts"] == attempts
        assert len(a.requests) == 1
        unharmed(gateway, "a")
        assert (await ask(gateway, stream=stream)).headers["x-gateway-backend"] == "a"


@both_ways
async def test_without_any_tool_parser_the_client_is_told_which_flags_are_missing(stream: bool) -> None:
    async with fleet(vllm("a", tool_parser=None)) as gateway:
        for _ in range(2):  # told by the backend, then known
            reply = await ask(gateway, stream=stream, tools=TOOLS)
            error = reply.json["error"]
            assert (reply.status, error["code"], error["param"]) == (400, "tool_choice_unsupported", "tools")
            for word in ("a cannot call tools", "--enable-auto-tool-choice", "--tool-call-parser"):
                assert word in error["message"]


async def test_a_declared_lack_is_not_even_tried() -> None:
    a, b = vllm("a"), vllm("b")
    async with fleet(a, b, more=", tool_parser: none") as gateway:
        assert (await ask(gateway, tools=TOOLS)).json["error"]["code"] == "tool_choice_unsupported"
        assert a.requests + b.requests == []
        assert (await ask(gateway, tools=TOOLS, tool_choice="none")).status == 200
        assert (await ask(gateway, tools=[])).json["error"]["message"].startswith("`tools` must not be")


async def test_learned_facts_are_forgotten_with_another_version_and_when_the_backend_goes_down() -> None:
    a, b = vllm("a", tool_parser=None), vllm("b")
    async with fleet(a, b) as gateway:
        state = gateway.gateway.fleet["a"]
        for forget in (upgrade, fail):
            await ask(gateway, tools=TOOLS)
            assert state.facts.is_lacking("tools", time.monotonic())
            forget(state)
            assert not state.facts.is_lacking("tools", time.monotonic())


def upgrade(state: BackendState) -> None:
    state.saw_version("0.33.0")


def fail(state: BackendState) -> None:
    for _ in range(state.backend.health.fail_after):
        state.evidence.failed("gone")


# -- pictures ---------------------------------------------------------------------------------------------------------


@both_ways
async def test_a_model_without_eyes_is_learned(stream: bool) -> None:
    a, b = vllm("a"), vllm("b", vision=True)
    async with fleet(a, b) as gateway:
        for _ in range(2):
            reply = await ask(gateway, stream=stream, messages=[{"role": "user", "content": PICTURE}])
            assert (reply.headers["x-gateway-backend"], reply.headers["x-gateway-routed"]) == ("b", "incapable")
        assert len(a.requests) == 1
        unharmed(gateway, "a")
        assert (await ask(gateway, stream=stream)).headers["x-gateway-backend"] == "a"


async def test_pictures_that_nobody_takes_are_refused_in_words() -> None:
    async with fleet(vllm("a")) as gateway:
        for _ in range(2):
            reply = await ask(gateway, messages=[{"role": "user", "content": PICTURE}])
            assert (reply.status, reply.json["error"]["code"]) == (400, "input_unsupported")
            assert "takes no images" in reply.json["error"]["message"]


# -- endpoints --------------------------------------------------------------------------------------------------------


async def test_a_path_that_is_not_served_is_learned_for_that_path_only() -> None:
    a, b = vllm("a"), vllm("b")
    async with fleet(a, b) as gateway:
        a.fault("status", body="detail_404", path="/v1/completions")
        for _ in range(2):
            reply = await ask(gateway, path="/v1/completions", prompt="x")
            assert (reply.headers["x-gateway-backend"], reply.headers["x-gateway-routed"]) == ("b", "incapable")
        assert len(from_clients(a.requests)) == 1
        unharmed(gateway, "a")
        assert (await ask(gateway)).headers["x-gateway-backend"] == "a"


async def test_an_endpoint_that_nobody_serves_is_refused_in_words() -> None:
    async with fleet(vllm("a")) as gateway:
        for _ in range(2):
            reply = await ask(gateway, path="/v1/embeddings", input="x")
            assert (reply.status, reply.json["error"]["code"]) == (400, "input_unsupported")
            assert "/embeddings" in reply.json["error"]["message"]
        unharmed(gateway, "a")


# -- windows ----------------------------------------------------------------------------------------------------------


def overflow(window: int) -> dict[str, Any]:
    text = (
        f"This model's maximum context length is {window} tokens. However, your prompt contains at least {window + 1} "
        "input tokens, which exceeds this limit even without any output tokens."
    )
    return {"status": 400, "body": {"error": {"message": text, "type": "BadRequestError", "code": 400}}}


def is_the_overflow(reply: RawReply, window: int) -> None:
    error = reply.json["error"]
    said = error.pop("message")
    assert reply.status == 400
    assert error == {"type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}
    first, _, rest = said.partition("tokens. However, your prompt contains ")
    assert first == f"This model's maximum context length is {window} "
    tokens, _, end = rest.partition(" ")
    assert int(tokens) > window
    assert end == "input tokens. Please reduce the length of the messages."


@both_ways
async def test_a_prompt_that_one_refuses_goes_to_a_larger_window(stream: bool) -> None:
    a, b = vllm("a", context=16384), vllm("b", context=32768)
    async with fleet(a, b) as gateway:
        a.fault("status", **overflow(16384))
        reply = await ask(gateway, stream=stream)
        assert (reply.headers["x-gateway-backend"], reply.headers["x-gateway-routed"]) == ("b", "too_long")
        unharmed(gateway, "a")


async def test_a_smaller_window_than_its_models_tell_is_learned_from_the_refusals_of_two_prompts() -> None:
    a, b = vllm("a", context=131072), vllm("b", context=131072)
    async with fleet(a, b) as gateway:
        state = gateway.gateway.fleet["a"]
        a.fault("status", **overflow(16384))
        for _ in range(2):  # the same prompt again is no second witness
            assert (await ask(gateway)).headers["x-gateway-backend"] == "b"
            assert state.window(time.monotonic()) == 131072
        other = await ask(gateway, messages=[{"role": "user", "content": "another prompt"}])
        assert other.headers["x-gateway-backend"] == "b"
        assert (len(a.requests), state.window(time.monotonic())) == (3, 16384)


@both_ways
async def test_a_prompt_that_all_refuse_is_told_the_largest_window(stream: bool) -> None:
    a, b = vllm("a", context=32768), vllm("b", context=16384)
    async with fleet(a, b) as gateway:
        a.fault("status", **overflow(32768))
        b.fault("status", **overflow(16384))
        is_the_overflow(await ask(gateway, stream=stream), 32768)
        unharmed(gateway, "a")


async def test_a_prompt_that_surely_fits_nowhere_is_refused_without_asking() -> None:
    a, b = vllm("a", context=2048), vllm("b", context=4096)
    async with fleet(a, b) as gateway:
        is_the_overflow(await ask(gateway, messages=[{"role": "user", "content": "x" * 100_000}]), 4096)
        assert a.requests + b.requests == []


async def test_a_prompt_that_is_too_long_for_the_first_does_not_go_there() -> None:
    a, b = vllm("a", context=2048), vllm("b", context=131072)
    async with fleet(a, b) as gateway:
        reply = await ask(gateway, messages=[{"role": "user", "content": "x" * 40_000}])
        assert (reply.headers["x-gateway-backend"], reply.headers["x-gateway-routed"]) == ("b", "too_long")
        assert a.requests == []


async def test_the_window_that_is_told_is_one_that_this_request_may_use() -> None:
    """A larger window that has no tool parser is no help to a request with tools."""
    a, b = vllm("a", context=4096), vllm("b", context=131072, tool_parser=None)
    async with fleet(a, b) as gateway:
        reply = await ask(gateway, messages=[{"role": "user", "content": "x" * 40_000}], tools=TOOLS)
        is_the_overflow(reply, 4096)


@both_ways
async def test_a_limit_beyond_an_unknown_window_is_clamped_on_the_same_backend(stream: bool) -> None:
    a, b = vllm("a", context=32768), vllm("b")
    a.fault("no_models")
    async with fleet(a, b) as gateway:
        assert gateway.gateway.fleet["a"].window(time.monotonic()) is None
        reply = await ask(gateway, stream=stream, max_tokens=1_000_000)
        assert (reply.status, reply.headers["x-gateway-backend"], reply.headers["x-gateway-attempts"]) == (
            200,
            "a",
            "2",
        )
        assert reply.headers["x-gateway-adapted"] == "max_tokens_clamped"
        assert [r.json["max_tokens"] for r in a.requests] == [1_000_000, 32768]
        unharmed(gateway, "a")
        await ask(gateway, stream=stream, max_tokens=1_000_000)
        assert len(a.requests) == 3


async def test_a_backend_that_refuses_every_limit_is_not_asked_for_ever() -> None:
    a, b = vllm("a", context=32768), vllm("b")
    a.fault("no_models")
    text = "max_tokens=5 cannot be greater than max_model_len=100. Please request fewer output tokens."
    async with fleet(a, b) as gateway:
        a.fault("status", status=400, body={"error": {"message": text}})
        reply = await ask(gateway, max_tokens=1000)
        assert (reply.headers["x-gateway-backend"], len(a.requests)) == ("b", 2)


@pytest.mark.parametrize(
    "text",
    [
        "This model's maximum context length is 32768 tokens. However, you requested 53000 tokens (23000 in the "
        "messages, 30000 in the completion). Please reduce the length of the messages or completion.",
        "'max_tokens' or 'max_completion_tokens' is too large: 30000. This model's maximum context length is 32768 "
        "tokens and your request has 23000 input tokens (30000 > 32768 - 23000).",
    ],
    ids=["0.6", "0.10"],
)
async def test_an_older_vllm_that_tells_the_prompts_length_is_asked_again_with_what_is_left(text: str) -> None:
    """The guess from its bytes was too small, so the clamp did not bite; now the backend has said it."""
    a, b = vllm("a", context=32768), vllm("b")
    async with fleet(a, b) as gateway:
        gateway.gateway.fleet["a"].ratio.value = 6.0
        gateway.gateway.fleet["a"].saw_version("0.10.0")
        a.fault("status", status=400, body={"error": {"message": text}}, count=1)
        prompt = [{"role": "user", "content": "x" * 60_000}]
        reply = await ask(gateway, messages=prompt, max_tokens=30_000)
        assert (reply.status, reply.headers["x-gateway-backend"]) == (200, "a")
        first, second = (r.json["max_tokens"] for r in a.requests)
        assert second <= 32768 - 23000 < first
        unharmed(gateway, "a")
