"""A real Ollama behind the gateway. `OLLAMA_URL` names one whose model `OLLAMA_MODEL` nobody else uses: it is loaded
and unloaded here. Without it these tests are skipped, with that reason; the simulated one holds the same in make test.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.support import RunningGateway, running_gateway

URL, MODEL = os.environ.get("OLLAMA_URL", ""), os.environ.get("OLLAMA_MODEL", "")
pytestmark = pytest.mark.skipif(
    not (URL and MODEL),
    reason="no real Ollama: set OLLAMA_URL and OLLAMA_MODEL (a model that it may load and unload)",
)
ASK: dict[str, Any] = {"model": "desk", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 20}


async def asked(path: str, **body: Any) -> Any:
    async with httpx.AsyncClient(base_url=URL, timeout=600) as client:
        reply = await (client.post(path, json=body) if body else client.get(path))
        return reply.json()


async def held() -> dict[str, Any] | None:
    models = (await asked("/api/ps"))["models"]
    return next((one for one in models if one["name"].removesuffix(":latest") == MODEL.removesuffix(":latest")), None)


@asynccontextmanager
async def desk(more: str = "") -> AsyncIterator[RunningGateway]:
    await asked("/api/generate", model=MODEL, keep_alive=0)
    backend = f"{{engine: ollama, url: '{URL}', model: '{MODEL}', context: 2048{more}}}"
    async with running_gateway(f"defaults: {{health: {{every: 200ms}}}}\nbackends: {{desk: {backend}}}") as gateway:
        await gateway.until(lambda: gateway.gateway.fleet["desk"].reported.loaded is not None)
        yield gateway


async def test_a_load_is_waited_for_and_outlives_the_client_that_left() -> None:
    async with desk() as gateway:
        first = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=ASK, timeout=600))
        await gateway.until(lambda: gateway.gateway.fleet["desk"].load is not None)
        first.cancel()
        assert (await gateway.client.post("/v1/chat/completions", json=ASK, timeout=600)).status_code == 200
        assert gateway.gateway.fleet["desk"].health.fails == 0


async def test_a_user_and_the_gateway_in_turns_need_one_load() -> None:
    async with desk() as gateway:
        await gateway.client.post("/v1/chat/completions", json=ASK, timeout=600)
        options = {"num_ctx": 2048, "num_predict": 5}
        answer = await asked("/api/chat", model=MODEL, messages=ASK["messages"], stream=False, options=options)
        assert answer["load_duration"] < 0.5e9, "it was loaded already"


async def test_what_others_have_loaded_is_left_as_it_is() -> None:
    async with desk(", health: {canary: 100ms}") as gateway:
        await asked("/api/generate", model=MODEL, keep_alive="30m", options={"num_ctx": 1024})
        before = await held()
        checks = gateway.gateway.fleet["desk"]
        await gateway.until(lambda: checks.held is not None)
        await asyncio.sleep(3)  # so many canaries would be due
        assert before is not None
        assert await held() == before


async def test_a_prompt_over_the_window_is_refused_and_not_cut() -> None:
    async with desk() as gateway:
        body = {**ASK, "messages": [{"role": "user", "content": "hello " * 9000}]}
        reply = await gateway.client.post("/v1/chat/completions", json=body, timeout=600)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
