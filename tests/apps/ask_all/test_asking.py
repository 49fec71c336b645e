"""`ask_all`: one request to several backends at the same time, one choice from each. When one fails,
the others do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import openai
import pytest

from simulator import SimVllm
from tests.accounting.test_record_settle_once import samples, settled
from tests.raw_client import chat, raw_client
from tests.resuming import CHAT, WITH_USAGE, Chain
from tests.scripted import RawReply, raw_post
from tests.support import running_gateway

pytestmark = pytest.mark.decided_both_ways

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}


@asynccontextmanager
async def judges(*sims: SimVllm, more: str = "", alias: str = "", top: str = "") -> AsyncIterator[Chain]:
    """Simulated backends that the alias `chat` asks all."""
    sims = sims or (SimVllm("a", served=["model-a"]), SimVllm("b", served=["model-b"]))
    async with AsyncExitStack() as stack:
        lines = [f'  {s.name}: {{url: "{await stack.enter_async_context(s.serve())}"{more}}}' for s in sims]
        names = [sim.name for sim in sims]
        routes = [*lines, "aliases:", f"  chat: {{ask_all: [{', '.join(names)}]{alias}}}", top]
        gateway = await stack.enter_async_context(running_gateway("\n".join(["backends:", *routes])))
        await gateway.until_ready(*names)
        yield Chain({sim.name: sim for sim in sims}, gateway)
        for sim in sims:
            sim.clear()


async def whole(c: Chain, **more: Any) -> RawReply:
    return await raw_post(c.gateway.url, chat("chat", said="4 words please", **more))


def texts(reply: RawReply) -> dict[int, str]:
    """Index of each choice of a stream -> its text."""
    said: dict[int, str] = {}
    for chunk in reply.chunks:
        for choice in chunk.get("choices", ()):
            said[choice["index"]] = said.get(choice["index"], "") + (choice["delta"].get("content") or "")
    return said


def ends(reply: RawReply) -> dict[int, str]:
    found = [choice for chunk in reply.chunks for choice in chunk.get("choices", ()) if choice["finish_reason"]]
    assert len(found) == len({choice["index"] for choice in found})
    return {choice["index"]: choice["finish_reason"] for choice in found}


async def test_each_backend_gives_one_choice() -> None:
    async with judges() as c:
        reply = await whole(c)
        assert reply.status == 200
        body = reply.json
        assert [choice["index"] for choice in body["choices"]] == [0, 1]
        assert all(choice["message"]["content"] and choice["finish_reason"] == "stop" for choice in body["choices"])
        rows = [{"backend": "a", "model": "model-a"}, {"backend": "b", "model": "model-b"}]
        assert body["x_gateway"] == {"choices": rows}
        assert (body["object"], body["model"], body["id"]) == (
            "chat.completion",
            "chat",
            f"chatcmpl-{reply.headers['x-request-id']}",
        )
        assert (reply.headers["x-gateway-backend"], reply.headers["x-gateway-attempts"]) == ("a,b", "2")
        assert [c.asked(name)[0]["model"] for name in "ab"] == ["model-a", "model-b"]


async def test_usage_is_added_up() -> None:
    async with judges() as c:
        alone = [await raw_post(c.gateway.url, chat(name, said="4 words please")) for name in "ab"]
        usage = (await whole(c)).json["usage"]
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert usage[key] == sum(reply.json["usage"][key] for reply in alone)
        streamed = await c.ask("4 words please", **WITH_USAGE)
        assert [chunk["usage"] for chunk in streamed.chunks if chunk.get("usage")] == [usage]


async def test_a_stream_has_the_choices_of_all() -> None:
    async with judges() as c:
        reply = await c.ask("6 words please")
        one = (await whole(c)).json["choices"][0]["message"]["content"]
        assert (reply.status, reply.ended) == (200, True)
        assert reply.body.endswith(b"data: [DONE]\n\n")
        assert reply.headers["x-gateway-backend"] == "a,b"
        said = texts(reply)
        assert sorted(said) == [0, 1]
        assert all(text.startswith(one) for text in said.values())
        assert ends(reply) == {0: "stop", 1: "stop"}
        assert not [chunk for chunk in reply.chunks if chunk.get("usage")]
        for key in ("id", "created", "model", "object"):
            assert len({chunk[key] for chunk in reply.chunks}) == 1
        named = {
            (choice["index"], row["backend"], row["model"])
            for chunk in reply.chunks
            if "x_gateway" in chunk
            for choice, row in zip(chunk["choices"], chunk["x_gateway"]["choices"], strict=True)
        }
        assert named == {(0, "a", "model-a"), (1, "b", "model-b")}


async def test_backends_of_ask_all_are_asked_at_the_same_time() -> None:
    """Each answers only when the other has been asked too."""
    async with judges() as c:
        for sim in c.sims.values():
            sim.fault("hang_before", count=1)
        asking = asyncio.create_task(whole(c))
        fleet = c.gateway.gateway.fleet
        await c.gateway.until(lambda: fleet["a"].inflight == fleet["b"].inflight == 1)
        for sim in c.sims.values():
            sim.clear()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await c.gateway.until(c.gateway.idle)


@pytest.mark.parametrize("fault", ["status", "die_before"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_member_that_fails_does_not_fail_the_others(fault: str, stream: bool) -> None:
    async with judges() as c:
        c.sims["b"].fault(fault)
        reply = await (c.ask("4 words please") if stream else whole(c))
        assert (reply.status, reply.ended) == (200, True)
        if stream:
            assert ends(reply) == {0: "stop", 1: "error"}
            [row] = [chunk["x_gateway"]["choices"][0] for chunk in reply.chunks if "error" in str(chunk)]
        else:
            first, second = reply.json["choices"]
            assert first["finish_reason"] == "stop"
            assert (second["finish_reason"], second["message"]["content"]) == ("error", None)
            row = reply.json["x_gateway"]["choices"][1]
            assert "error" not in reply.json["x_gateway"]["choices"][0]
        assert (row["backend"], row["error"]["code"]) == ("b", "upstream_error")


async def test_a_stream_that_breaks_ends_its_own_choice_alone() -> None:
    async with judges() as c:
        c.sims["a"].fault("die_mid", after=2)
        reply = await c.ask("9 words please")
        assert reply.ended
        assert ends(reply) == {0: "error", 1: "stop"}
        said = texts(reply)
        assert 0 < len(said[0]) < len(said[1])
        assert "stream_interrupted" in reply.body.decode()


@pytest.mark.parametrize("stream", [False, True])
async def test_when_all_fail_the_client_gets_the_error(stream: bool) -> None:
    async with judges() as c:
        for sim in c.sims.values():
            sim.fault("status", status=500)
        reply = await (c.ask() if stream else whole(c))
        assert reply.status == 502
        error = reply.json["error"]
        assert error["code"] == "upstream_error"
        assert "a:" in error["message"]
        assert "b:" in error["message"]
        assert reply.headers["x-gateway-backend"] == "a,b"


async def test_errors_that_the_client_can_mend_come_first() -> None:
    """One window is too small, the other backend fails."""
    async with judges(SimVllm("a"), SimVllm("b", context=64)) as c:
        c.sims["a"].fault("status", status=500)
        reply = await raw_post(c.gateway.url, chat("chat", said="word " * 500))
        assert (reply.status, reply.json["error"]["code"]) == (400, "context_length_exceeded")


async def test_when_all_streams_break_the_stream_does_not_look_complete() -> None:
    async with judges() as c:
        for sim in c.sims.values():
            sim.fault("die_mid", after=2)
        reply = await c.ask()
        assert not reply.ended
        assert b"[DONE]" not in reply.body
        assert b'"error":{' in reply.events[-1]


async def test_each_member_has_its_own_checks_and_mending() -> None:
    """One of them leaves its calls in the text; they are moved to their field for its choice alone."""
    sims = SimVllm("a", tool_parser="qwen3_coder"), SimVllm("b", tool_parser=None)
    async with judges(*sims, alias=", on_unsupported: mend") as c:
        body = chat("chat", said="What is the weather in Oslo? Use the tool.", tools=[TOOL])
        reply = await raw_post(c.gateway.url, body)
        calls = [choice["message"].get("tool_calls") for choice in reply.json["choices"]]
        assert calls[0][0]["function"]["name"] == "get_weather"
        assert calls[1][0]["function"]["name"] == "get_weather"
        assert reply.headers["x-gateway-mended"] == "tool_calls"
        assert c.asked("b")[-1]["tool_choice"] == "none"
        assert c.asked("a")[0].get("tool_choice") != "none"


async def test_each_member_is_counted_as_a_request_of_its_own() -> None:
    async with judges() as c:
        c.sims["b"].fault("status", status=500)
        await whole(c)
        outcomes = {key[1:]: count for key, count in (await settled(c.gateway)).items()}
        assert outcomes == {("a", "chat", "200"): 1, ("b", "chat", "upstream_error"): 1}
        assert {key[1]: count for key, count in samples(c.gateway, "gateway_attempts_total").items()} == {
            "ok": 1,
            "failed": 1,
        }
        assert c.gateway.gateway.memory.used == 0


async def test_the_rate_of_a_client_counts_each_member() -> None:
    top = 'clients: {x: {key: "sk-0123456789abcdef", rpm: 2}}'
    async with judges(top=top) as c:
        key = "authorization: Bearer sk-0123456789abcdef"
        assert (await raw_post(c.gateway.url, chat("chat"), headers=[key])).status == 200
        refused = await raw_post(c.gateway.url, chat("chat"), headers=[key])
        assert (refused.status, refused.json["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "retry-after" in refused.headers


async def test_one_request_at_a_time_asks_them_one_after_the_other() -> None:
    top = 'clients: {x: {key: "sk-0123456789abcdef", max_inflight: 1}}'
    async with judges(top=top) as c:
        reply = await raw_post(c.gateway.url, chat("chat"), headers=["authorization: Bearer sk-0123456789abcdef"])
        assert [choice["finish_reason"] for choice in reply.json["choices"]] == ["stop", "stop"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_everything(stream: bool) -> None:
    async with judges() as c:
        for sim in c.sims.values():
            sim.fault("hang_before")
        fleet = c.gateway.gateway.fleet
        async with raw_client(c.gateway.url) as client:
            await client.post(CHAT, chat("chat", stream=stream))
            await c.gateway.until(lambda: fleet["a"].inflight == fleet["b"].inflight == 1)
            client.close()
            await c.gateway.until(c.gateway.idle)
        outcomes = {(key[1], key[3]): count for key, count in (await settled(c.gateway)).items()}
        assert outcomes == {("a", "client_gone"): 1, ("b", "client_gone"): 1}
        assert c.gateway.gateway.memory.used == 0


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "messages": ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}),
    "responses": ("/v1/responses", {"input": "hi"}),
    "embeddings": ("/v1/embeddings", {"input": "hi"}),
    "n": (CHAT, {"messages": [{"role": "user", "content": "hi"}], "n": 2}),
    "several prompts": ("/v1/completions", {"prompt": ["a", "b"]}),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_ask_all_refuses_requests_that_cannot_have_several_answers(name: str) -> None:
    path, body = REFUSED[name]
    async with judges() as c:
        reply = await raw_post(c.gateway.url, {"model": "chat", **body}, path)
        assert (reply.status, reply.json["error"]["code"]) == (400, "input_unsupported")
        assert c.asked("a") == c.asked("b") == []
        assert sum((await settled(c.gateway)).values()) == 1


async def test_completions_have_a_choice_from_each_too() -> None:
    async with judges() as c:
        body = {"model": "chat", "prompt": "3 words please", "max_tokens": 5}
        reply = await raw_post(c.gateway.url, body, "/v1/completions")
        assert [choice["index"] for choice in reply.json["choices"]] == [0, 1]
        assert reply.json["object"] == "text_completion"


async def test_the_openai_sdk_reads_it() -> None:
    async with judges() as c:
        c.sims["b"].fault("status", status=500)
        async with openai.AsyncOpenAI(base_url=f"{c.gateway.url}/v1", api_key="none", max_retries=0) as client:
            said: Any = [{"role": "user", "content": "4 words please"}]
            answer = await client.chat.completions.create(model="chat", messages=said)
            assert [choice.finish_reason for choice in answer.choices] == ["stop", "error"]
            found: dict[int, str] = {}
            async for chunk in await client.chat.completions.create(model="chat", messages=said, stream=True):
                for choice in chunk.choices:
                    found[choice.index] = found.get(choice.index, "") + (choice.delta.content or "")
            assert found[0] == answer.choices[0].message.content


async def test_explain_names_those_that_are_asked() -> None:
    async with judges() as c:
        answer = await c.gateway.client.post("/admin/explain", json={"alias": "chat"})
        assert (answer.json()["ask_all"], answer.json()["order"]) == (True, ["a", "b"])
