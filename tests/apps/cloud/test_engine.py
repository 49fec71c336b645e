"""Clouds through litellm, against a local server that speaks Anthropic's API."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from gateway.apps.cloud import engine as litellm
from gateway.apps.cloud.engine import LiteLLMEngine
from gateway.config.snapshot import Backend, Secret, Timeouts
from gateway.domain.endpoints import CHAT, EMBEDDINGS, Endpoint
from gateway.domain.upstream import ResetFailure, Response
from gateway.engines.registry import ENGINES
from tests.engines.anthropic_server import (
    START,
    AnthropicServer,
    Script,
    end,
    text_block,
    whole,
)
from tests.engines.scripted import call_of, events_of, state_of
from tests.support import running_gateway

KEY = "ours-and-secret"  # litellm itself blots out only what looks like a key
ASK: dict[str, Any] = {"model": "anthropic/claude-x", "messages": [{"role": "user", "content": "hello"}]}
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
PATIENCE = 10.0


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


async def test_embeddings_in_both_forms(server: AnthropicServer) -> None:
    """Through litellm's OpenAI-compatible provider: Anthropic has none."""
    vectors = {"object": "list", "model": "e", "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}]}
    server.script = Script(pieces=[msgspec.json.encode({**vectors, "usage": {"prompt_tokens": 1, "total_tokens": 1}})])
    for form in ("float", "base64"):  # the answer is encoded where it leaves the gateway
        response = await ask(server.url + "/v1", EMBEDDINGS, model="hosted_vllm/e", input="x", encoding_format=form)
        assert response.status == 200
        assert (await said(response))["data"][0]["embedding"] == [0.5, -1.0]


async def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ImportError("No module named 'litellm'")

    monkeypatch.setattr(litellm, "import_sdk", missing)
    backend = Backend("claude", "litellm", cloud=True)
    response = await LiteLLMEngine().send(state_of(backend), call_of(ASK))
    assert response.status == 503
    assert "pip install --require-hashes -r requirements-cloud.lock" in (await said(response))["error"]["message"]


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


async def test_serving_without_the_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> Any:
        raise ImportError("No module named 'litellm'")

    monkeypatch.setattr(litellm, "import_sdk", missing)
    await LiteLLMEngine().prepare()
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "the extra 'cloud'" in said
    assert "pip install --require-hashes -r requirements-cloud.lock" in said
