"""Clouds through litellm, against a local server that speaks Anthropic's API."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from gateway.config.snapshot import Backend, Secret, Timeouts
from gateway.domain.request import CHAT, EMBEDDINGS, Endpoint
from gateway.domain.upstream import ConnectFailure, ResetFailure, Response, UpstreamFailure
from gateway.engines.base import Refused
from gateway.engines.litellm import engine as litellm
from gateway.engines.litellm.engine import LiteLLMEngine, import_sdk
from gateway.engines.litellm.errors import error_answer
from gateway.engines.litellm.request import chat_arguments
from gateway.engines.registry import ENGINES
from gateway.inspection.error_replies import judge
from tests.engines.anthropic_server import (
    START,
    AnthropicServer,
    Script,
    anthropic_server,
    block,
    end,
    error,
    event,
    text_block,
    tool_block,
    whole,
)
from tests.engines.scripted import call_of, events_of, state_of
from tests.support import running_gateway

KEY = "ours-and-secret"  # litellm itself blots out only what looks like a key
ASK: dict[str, Any] = {"model": "anthropic/claude-x", "messages": [{"role": "user", "content": "hello"}]}
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
PATIENCE = 10.0


@pytest.fixture
async def server() -> AsyncIterator[AnthropicServer]:
    async with anthropic_server() as fake:
        yield fake


async def ask(url: str | None, endpoint: Endpoint = CHAT, **fields: Any) -> Response:
    backend = Backend("claude", "litellm", url, cloud=True, api_key=Secret(KEY), timeouts=Timeouts(connect=2.0))
    return await ENGINES["litellm"].send(state_of(backend), call_of({**ASK, **fields}, endpoint))


async def said(response: Response) -> Any:
    return msgspec.json.decode(await response.read_all(100_000))


def deltas(events: list[Any]) -> list[Any]:
    return [e["choices"][0]["delta"] for e in events if isinstance(e, dict) and e["choices"]]


def test_the_sdk_is_not_imported_with_the_engines() -> None:
    code = "import sys, gateway.engines, gateway.http.app; sys.exit('litellm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_whole_answer(server: AnthropicServer) -> None:
    server.script = Script(pieces=[whole([{"type": "text", "text": "hi"}], "end_turn")])
    response = await ask(server.url, max_tokens=50)
    assert response.status == 200
    body = await said(response)
    assert (body["id"], body["object"]) == ("chatcmpl-r1", "chat.completion")
    choice = body["choices"][0]
    assert (choice["message"]["role"], choice["message"]["content"], choice["finish_reason"]) == (
        "assistant",
        "hi",
        "stop",
    )
    assert body["usage"]["prompt_tokens"] == 10
    path, headers, sent = server.requests[0]
    assert (path, headers["x-api-key"]) == ("/v1/messages", KEY)
    assert (sent["model"], sent["max_tokens"]) == ("claude-x", 50)


async def test_a_url_with_v1_is_the_same_address(server: AnthropicServer) -> None:
    server.script = Script(pieces=[whole([{"type": "text", "text": "hi"}], "end_turn")])
    assert (await ask(server.url + "/v1")).status == 200
    assert server.requests[0][0] == "/v1/messages"


async def test_a_whole_answer_with_a_call(server: AnthropicServer) -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {"a": 1}}
    server.script = Script(pieces=[whole([use], "tool_use")])
    choice = (await said(await ask(server.url, tools=[TOOL])))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    function = choice["message"]["tool_calls"][0]["function"]
    assert (function["name"], msgspec.json.decode(function["arguments"])) == ("now", {"a": 1})
    assert choice["message"]["content"] is None
    assert server.requests[0][2]["tools"][0]["name"] == "now"


async def test_a_stream_has_openais_shape(server: AnthropicServer) -> None:
    thought = block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "hm"})
    server.script = Script(
        pieces=[START, thought, text_block(1, "Hel", "lo"), tool_block(2, "now", '{"a":', "1}"), end("tool_use")]
    )
    response = await ask(server.url, stream=True, tools=[TOOL])
    assert response.headers["content-type"] == "text/event-stream"
    events = events_of(await response.read_all(100_000))
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["completion_tokens"] == 9
    chunks = events[:-2]
    assert all({"index", "delta", "finish_reason"} <= c["choices"][0].keys() for c in chunks)
    assert {(c["id"], c["object"]) for c in chunks} == {("chatcmpl-r1", "chat.completion.chunk")}
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]] == ["tool_calls"]
    assert "".join(d.get("content") or "" for d in deltas(chunks)) == "Hello"
    assert "".join(d.get("reasoning_content") or "" for d in deltas(chunks)) == "hm"
    calls = [call for d in deltas(chunks) for call in d.get("tool_calls", ())]
    assert "".join(call["function"]["arguments"] for call in calls) == '{"a":1}'


async def test_an_end_without_a_finish_reason_is_not_given_one(server: AnthropicServer) -> None:
    server.script = Script(pieces=[START, text_block(0, "Hel")])
    events = events_of(await (await ask(server.url, stream=True)).read_all(100_000))
    assert events
    assert "[DONE]" not in events
    assert all(e["choices"][0]["finish_reason"] is None for e in events)


async def test_an_error_inside_a_stream_is_an_error_event(server: AnthropicServer) -> None:
    broken = event("error", error={"type": "overloaded_error", "message": f"Overloaded {KEY}"})
    server.script = Script(pieces=[START, text_block(0, "Hel"), broken])
    body = await (await ask(server.url, stream=True)).read_all(100_000)
    events = events_of(body)
    assert "Overloaded" in events[-1]["error"]["message"]
    assert KEY.encode() not in body


async def test_an_error_before_the_first_chunk_of_a_stream_is_an_answer(server: AnthropicServer) -> None:
    server.script = Script(pieces=[event("error", error={"type": "overloaded_error", "message": "Overloaded"})])
    response = await ask(server.url, stream=True)
    assert response.status >= 500
    assert "Overloaded" in (await said(response))["error"]["message"]


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("status", "kind", "verdict"),
    [
        (400, "invalid_request_error", "client"),
        (401, "authentication_error", "misconfigured"),
        (403, "permission_error", "misconfigured"),
        (404, "not_found_error", "misconfigured"),
        (429, "rate_limit_error", "cooldown"),
        (500, "api_error", "failed"),
        (529, "overloaded_error", "failed"),
    ],
)
async def test_errors_keep_their_meaning(
    server: AnthropicServer, status: int, kind: str, verdict: str, streamed: bool
) -> None:
    server.script = Script(status, [error(kind, f"no, and your key is {KEY}")], {"retry-after": "7"})
    response = await ask(server.url, stream=streamed)
    body = await response.read_all(10_000)
    assert KEY.encode() not in body
    told = judge(response.status, response.headers, body, "chat")
    assert told.kind == verdict
    assert told.retry_after == (7.0 if verdict == "cooldown" else None)
    assert len(server.requests) == 1  # nothing is tried twice: each try may be billed


async def test_a_prompt_over_the_window_is_understood(server: AnthropicServer) -> None:
    server.script = Script(400, [error("invalid_request_error", "prompt is too long: 200001 tokens > 200000 maximum")])
    response = await ask(server.url)
    assert judge(response.status, {}, await response.read_all(10_000), "chat").kind == "too_long"


async def test_a_refused_connection_is_a_failure() -> None:
    with pytest.raises(ConnectFailure):
        await ask("http://127.0.0.1:1")


async def test_a_connection_that_breaks_before_an_answer_is_a_failure() -> None:
    async with await asyncio.start_server(_hang_up, "127.0.0.1", 0) as mute:
        port = mute.sockets[0].getsockname()[1]
        try:
            response = await ask(f"http://127.0.0.1:{port}")
        except UpstreamFailure:
            return
        assert response.status >= 500


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.close()


# -- leaving ----------------------------------------------------------------------------------------------------------


async def test_abort_during_a_read_ends_the_connection(server: AnthropicServer) -> None:
    server.script = Script(pieces=[START, text_block(0, "Hel"), None])
    async with asyncio.timeout(PATIENCE):
        response = await ask(server.url, stream=True)
        reading = await _pending_read(response)
        response.abort(ResetFailure("left"))
        with pytest.raises(ResetFailure, match="left"):
            await reading
        await server.left.wait()


async def test_abort_between_reads_ends_the_connection(server: AnthropicServer) -> None:
    server.script = Script(pieces=[START, text_block(0, "Hel"), None])
    async with asyncio.timeout(PATIENCE):
        response = await ask(server.url, stream=True)
        await response.read_some()
        await server.waiting.wait()
        response.release()
        await server.left.wait()
        with pytest.raises(ResetFailure):
            await response.read_some()


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_cancelled_request_ends_the_connection(server: AnthropicServer, streamed: bool) -> None:
    server.script = Script(pieces=[b"\n", None])
    async with asyncio.timeout(PATIENCE):
        sending = asyncio.create_task(ask(server.url, stream=streamed))
        await server.waiting.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await server.left.wait()


async def test_a_cancelled_read_is_cancelled_and_ends_the_connection(server: AnthropicServer) -> None:
    server.script = Script(pieces=[START, text_block(0, "Hel"), None])
    async with asyncio.timeout(PATIENCE):
        response = await ask(server.url, stream=True)
        reading = await _pending_read(response)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        response.release()
        await server.left.wait()


async def _pending_read(response: Response) -> asyncio.Task[bytes]:
    """Reads until there is nothing more to read for now."""
    while True:
        reading = asyncio.create_task(response.read_some())
        await asyncio.wait([reading], timeout=0.1)
        if not reading.done():
            return reading
        assert reading.result()


# -- what is asked ----------------------------------------------------------------------------------------------------


def arguments(*also: str, **fields: Any) -> dict[str, Any]:
    """`also`: further parameters that the cloud takes."""
    raw = {name: Raw(msgspec.json.encode(value)) for name, value in {**ASK, **fields}.items()}
    return chat_arguments(raw, frozenset({"temperature", "tools", *also}), stream=False)


def test_only_known_fields_are_passed_on() -> None:
    given = {"api_base": "http://evil", "api_key": "x", "mock_response": "hi", "fallbacks": ["m"], "top_k": 3}
    assert arguments(**given).keys() == {"messages"}


def test_hints_that_a_cloud_lacks_are_left_out_and_demands_are_not() -> None:
    chosen = arguments(temperature=0.5, seed=1, frequency_penalty=0.1, n=2, tools=[TOOL], stop=None)
    assert chosen.keys() == {"messages", "temperature", "n", "tools"}


@pytest.mark.parametrize(
    ("kind", "takes", "becomes"),
    [
        ("adaptive", [], {}),
        ("disabled", [], {}),
        ("disabled", ["reasoning_effort"], {"reasoning_effort": "none"}),
        ("enabled", ["reasoning_effort"], {"reasoning_effort": "medium"}),
        ("enabled", [], {"thinking": {"type": "enabled"}}),  # the cloud refuses it
        *((kind, ["thinking"], {"thinking": {"type": kind}}) for kind in ("adaptive", "disabled", "enabled")),
    ],
)
def test_thinking_is_said_as_the_cloud_knows_it(kind: str, takes: list[str], becomes: dict[str, Any]) -> None:
    assert arguments(*takes, thinking={"type": kind}) == {"messages": ASK["messages"], **becomes}


def test_an_effort_that_was_asked_for_wins_over_that_of_thinking() -> None:
    assert arguments("reasoning_effort", thinking={"type": "enabled"}, reasoning_effort="high")["reasoning_effort"] == (
        "high"
    )


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://192.168.1.1/admin"}},
        {"type": "image_url", "image_url": "https://example.invalid/cat.png"},
        {"type": "file", "file": {"file_id": "http://192.168.1.1/admin"}},
        {"type": "file", "file": {"file_id": "http://192.168.1.1/admin", "file_data": "data:application/pdf;base64,A"}},
        {"type": "file", "file": "data:application/pdf;base64,AAAA"},
        "text",
    ],
)
def test_nothing_is_fetched_for_a_client(part: object) -> None:
    with pytest.raises(Refused, match="data URL"):
        arguments(messages=[{"role": "user", "content": [part]}])


def test_pictures_and_pdfs_as_data_go_through() -> None:
    image, file = {"url": "data:image/png;base64,AAAA"}, {"file_data": "data:application/pdf;base64,AAAA"}
    parts = [{"type": "image_url", "image_url": image}, {"type": "file", "file": file}]
    assert arguments(messages=[{"role": "user", "content": parts}])["messages"][0]["content"] == parts


@pytest.mark.parametrize("model", ["gpt-4o", "openai/gpt-4o", "nobodys-model", "hosted_vllm/x"])
async def test_a_model_that_would_go_to_openai_by_default_is_misconfigured(model: str) -> None:
    response = await ask(None, model=model)
    body = await response.read_all(10_000)
    verdict = judge(response.status, response.headers, body, "chat")
    assert verdict.kind == "misconfigured"
    assert "engine: openai" in verdict.message or "provider/model" in verdict.message


async def test_embeddings_in_both_forms(server: AnthropicServer) -> None:
    """Through litellm's OpenAI-compatible provider: Anthropic has none."""
    vectors = {"object": "list", "model": "e", "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}]}
    server.script = Script(pieces=[msgspec.json.encode({**vectors, "usage": {"prompt_tokens": 1, "total_tokens": 1}})])
    for form, wanted in (("float", [0.5, -1.0]), ("base64", "AAAAPwAAgL8=")):
        response = await ask(server.url + "/v1", EMBEDDINGS, model="hosted_vllm/e", input="x", encoding_format=form)
        assert response.status == 200
        assert (await said(response))["data"][0]["embedding"] == wanted


async def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ImportError("No module named 'litellm'")

    monkeypatch.setattr(litellm, "import_sdk", missing)
    backend = Backend("claude", "litellm", cloud=True)
    response = await LiteLLMEngine().send(state_of(backend), call_of(ASK))
    assert response.status == 503
    assert "pip install 'spark-gateway[cloud]'" in (await said(response))["error"]["message"]


async def test_the_import_does_not_stop_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, seen = asyncio.get_running_loop(), asyncio.Event()

    def slow() -> Any:
        asyncio.run_coroutine_threadsafe(_set(seen), loop).result(PATIENCE)
        return "sdk"

    monkeypatch.setattr(litellm, "import_sdk", slow)
    assert await LiteLLMEngine().load() == "sdk"
    assert seen.is_set()


async def _set(event: asyncio.Event) -> None:
    event.set()


def test_a_timeout_is_silence_and_not_the_clients_fault() -> None:
    sdk = import_sdk()
    with pytest.raises(UpstreamFailure) as failure:
        error_answer(sdk, sdk.exceptions.Timeout("slow", model="m", llm_provider="anthropic"), KEY)
    assert failure.value.kind == "silence"


def test_a_wrapped_midstream_error_is_what_it_wraps() -> None:
    sdk = import_sdk()
    inner = sdk.exceptions.RateLimitError("slow down", model="m", llm_provider="anthropic")
    outer = sdk.exceptions.MidStreamFallbackError("x", model="m", llm_provider="anthropic", original_exception=inner)
    assert error_answer(sdk, outer, None).status == 429


async def test_the_gateway_serves_a_chat_from_a_cloud(server: AnthropicServer) -> None:
    server.script = Script(pieces=[START, text_block(0, "Hello"), end("end_turn")])
    routes = (
        f"backends: {{claude: {{engine: litellm, url: '{server.url}', model: anthropic/claude-x, api_key: '{KEY}'}}}}\n"
        "aliases: {writer: [claude]}"
    )
    async with running_gateway(routes) as gateway:
        body = {**ASK, "model": "writer", "stream": True}
        reply = await gateway.client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200
        events = events_of(reply.content)
        assert events[-1] == "[DONE]"
        assert {e["model"] for e in events[:-1]} == {"writer"}
        assert "".join(d.get("content") or "" for d in deltas(events)) == "Hello"
