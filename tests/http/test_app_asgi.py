"""The app on an ordinary ASGI server (uvicorn with h11, none of our connections): the same promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from tempfile import TemporaryDirectory

import httpx
import pytest
import uvicorn

from gateway.config.load import load_text
from gateway.http.app import App
from gateway.http.server import listen
from simulator import SimVllm
from tests.waiting import until

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "What is 12*17?"}]}


@asynccontextmanager
async def served(sim: SimVllm) -> AsyncIterator[tuple[httpx.AsyncClient, App]]:
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(sim.serve(port=0))
        data = stack.enter_context(TemporaryDirectory())
        routes = f"server: {{max_body: 4KiB, data: '{data}'}}\nbackends: {{chat: {{url: '{backend}'}}}}"
        app = App(load_text(routes, environ={}).snapshot)
        sock = listen("127.0.0.1", 0)
        server = uvicorn.Server(uvicorn.Config(app, http="h11", log_level="critical"))
        task = asyncio.create_task(server.serve(sockets=[sock]))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=10, trust_env=False) as client:
            await until(lambda: server.started)
            yield client, app
        server.should_exit = True
        await task


async def test_chats_are_answered_and_streamed() -> None:
    async with served(SimVllm(name="a", served=["m"], context=32768)) as (client, _):
        whole = await client.post("/v1/chat/completions", json=CHAT)
        assert "204" in whole.json()["choices"][0]["message"]["content"]
        stream = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.text.endswith("data: [DONE]\n\n")


async def test_a_client_that_leaves_cancels_the_upstream_request() -> None:
    sim = SimVllm(name="a", served=["m"], context=32768)
    async with served(sim) as (client, app):
        sim.fault("hang_mid", after=2)
        async with client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as stream:
            async for line in stream.aiter_lines():
                if '"content":' in line:
                    break
        await sim.wait_aborted(1)
        await until(lambda: not app.gateway.active, within=5)


async def test_a_broken_stream_is_cut_and_not_ended() -> None:
    sim = SimVllm(name="a", served=["m"], context=32768)
    async with served(sim) as (client, _):
        sim.fault("die_mid", after=2)
        received = ""
        async with client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as stream:
            with pytest.raises(httpx.RemoteProtocolError):  # noqa: PT012  # all that came before the cut is wanted
                async for text in stream.aiter_text():
                    received += text
        assert '"code":"stream_interrupted"' in received
        assert "[DONE]" not in received


async def test_a_body_beyond_the_limit_is_refused() -> None:
    sim = SimVllm(name="a", served=["m"], context=32768)
    async with served(sim) as (client, app):
        too_much = {**CHAT, "user": "x" * app.gateway.snapshot.server.max_body}
        reply = await client.post("/v1/chat/completions", json=too_much)
        assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")
