"""A vLLM that is stopped or killed under load: streams with content are cut, everything else is served elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from gateway.domain.health_state import State
from simulator import SimVllm
from tests.raw_client import RawClient, raw_client
from tests.support import RunningGateway, running_gateway
from tests.waiting import until_said

from .asks import CHAT, chat, long_chat, script
from .servers import RUST, VllmServer

SLOTS = 8  # of serve.sh
GRACE = 2.0  # seconds from SIGTERM to SIGKILL; docker gives 10
WITHIN = 30.0  # seconds from the death to the last client's answer
INTERRUPTED = {
    "message": "upstream connect error: backend reset",
    "type": "server_error",
    "param": None,
    "code": "stream_interrupted",
}


@dataclass
class Load:
    """Requests under way at `real`; behind it in the chain stands `spare`, a simulated one."""

    gateway: RunningGateway
    talking: list[RawClient]  # streams that have said something
    whole: asyncio.Task[httpx.Response]  # an answer in one piece, half made
    queued: asyncio.Task[httpx.Response]  # a stream that vLLM has not begun
    ids: list[str]  # by which vLLM knows them


@asynccontextmanager
async def chain(real: VllmServer) -> AsyncIterator[RunningGateway]:
    spare = SimVllm("spare")
    async with spare.serve() as url:
        routes = (
            "defaults: {health: {every: 250ms}}\n"
            f"backends: {{{real.routes('real', slots='32')}, spare: {{url: '{url}'}}}}\n"
            "aliases: {front: [real, spare]}"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("real", "spare")
            yield gateway


@asynccontextmanager
async def under_load(real: VllmServer, http: httpx.AsyncClient) -> AsyncIterator[Load]:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(chain(real))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False))

        def post(name: str, stream: bool) -> asyncio.Task[httpx.Response]:
            body, headers = long_chat(8000, stream=stream), {"x-request-id": name}
            return asyncio.create_task(client.post(CHAT, json=body, headers=headers))

        whole = post("whole", False)
        talking = [await stack.enter_async_context(raw_client(gateway.url)) for _ in range(SLOTS - 1)]
        for number, stream in enumerate(talking):
            await stream.post(CHAT, long_chat(8000, stream=True), f"x-request-id: talking-{number}")
            await stream.until(b'"content":"')
        queued = post("queued", True)
        await real.until_running(http, SLOTS + 1)
        assert not whole.done()
        assert not queued.done()
        names = ["whole", "queued", *(f"talking-{number}" for number in range(SLOTS - 1))]
        yield Load(gateway, talking, whole, queued, [f"chatcmpl-{name}" for name in names])


async def survived(load: Load) -> None:
    """What every client must have seen, whatever became of the backend."""
    async with asyncio.timeout(WITHIN):
        for stream in load.talking:
            rest = await stream.reader.read()
            assert b"[DONE]" not in rest
            assert b'"finish_reason":"abort"' not in rest
            assert not rest.endswith(b"0\r\n\r\n"), "a broken stream was ended as if it were whole"
            last = [line for line in rest.split(b"\n") if line.startswith(b"data: ")][-1]
            assert json.loads(last.removeprefix(b"data: "))["error"] == INTERRUPTED
        for answer in await asyncio.gather(load.whole, load.queued):
            assert answer.status_code == 200
            assert answer.headers["x-gateway-backend"] == "spare"
            assert answer.headers["x-gateway-fallback"] == "failed"
        assert load.whole.result().json()["choices"][0]["finish_reason"] in ("stop", "length")
        assert load.queued.result().text.endswith("data: [DONE]\n\n")


async def down(gateway: RunningGateway) -> None:
    """The backend is out, and nobody who asks now notices."""
    answer = await gateway.client.post(CHAT, json=chat())
    assert (answer.status_code, answer.headers["x-gateway-backend"]) == (200, "spare")
    await gateway.until(lambda: gateway.state("real") is State.DOWN)
    answer = await gateway.client.post(CHAT, json=chat())
    assert (answer.headers["x-gateway-backend"], answer.headers["x-gateway-attempts"]) == ("spare", "1")


async def test_a_stopped_backend_is_left_and_taken_back_when_it_is_there_again(
    plain: VllmServer, http: httpx.AsyncClient
) -> None:
    """As `docker stop` does it: SIGTERM, and after a grace SIGKILL. What SIGTERM does to requests in flight is decided
    by a race inside vLLM: finish_reason abort and [DONE], an error event and [DONE], or silence until it is killed."""
    async with under_load(plain, http) as load:
        stopped = asyncio.create_task(asyncio.to_thread(plain.stop, GRACE))
        await survived(load)
        await stopped
        await down(load.gateway)
        await asyncio.to_thread(plain.up)

        async def from_real() -> httpx.Response | None:
            answer = await load.gateway.client.post(CHAT, json=chat(**script("Hello")))
            assert answer.status_code == 200
            return answer if answer.headers["x-gateway-backend"] == "real" else None

        answer = await until_said(from_real, within=20)
        assert answer.json()["choices"][0]["message"]["content"] == "Hello"
        assert "x-gateway-fallback" not in answer.headers
        assert load.gateway.state("real") is State.READY


@pytest.mark.skipif(RUST, reason="its Rust front end has no such path")
async def test_a_request_that_vllm_aborts_is_never_a_whole_answer(plain: VllmServer, http: httpx.AsyncClient) -> None:
    """It ends them with HTTP 200, what there is of the text, finish_reason abort and [DONE]."""
    async with under_load(plain, http) as load:
        url, ids = plain.url + "/inference/v1/abort_requests", {"request_ids": load.ids}
        assert (await http.post(url, json=ids, headers=plain.headers)).status_code == 200
        await survived(load)
        assert load.gateway.metric("gateway_attempts_total", backend="real", outcome="interrupted") == SLOTS - 1


@pytest.mark.parametrize(
    "kill", [VllmServer.kill_engine, VllmServer.kill_api_server], ids=["its engine", "its API server"]
)
async def test_a_backend_that_is_killed_is_left(
    plain: VllmServer, http: httpx.AsyncClient, kill: Callable[[VllmServer], None]
) -> None:
    if RUST and kill is VllmServer.kill_api_server:
        pytest.skip("the port belongs to a process of its own")
    async with under_load(plain, http) as load:
        kill(plain)
        await survived(load)
        await down(load.gateway)
