"""A request that vLLM always fails takes the server from nobody: the harmless request that follows is answered."""

from __future__ import annotations

import contextlib
from typing import Any

import httpx
import pytest

from gateway.domain.health_state import State
from tests.support import RunningGateway, running_gateway

from .asks import CHAT, chat, script
from .servers import RUST, VllmServer

# The grammar allows "red" and "blue"; what the script says instead ends the request with a 500.
POISON: dict[str, Any] = {
    "structured_outputs": {"choice": ["red", "blue"]},
    "chat_template_kwargs": {"enable_thinking": False},
    **script("green"),
}
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def fails(gateway: RunningGateway, said: str, *, stream: bool) -> str:
    """The error's message. In a stream vLLM answers 200 and an error event, which is a bad gateway's."""
    answer = await gateway.client.post(CHAT, json=chat(said, stream=stream, **POISON))
    assert (answer.status_code, answer.json()["error"]["code"]) == (502 if stream else 500, "upstream_error")
    message: str = answer.json()["error"]["message"]
    return message


async def serves_others(gateway: RunningGateway, backend: str, *, stream: bool) -> None:
    answer = await gateway.client.post(CHAT, json=chat("hello", stream=stream, max_tokens=4))
    assert (answer.status_code, answer.headers["x-gateway-backend"]) == (200, backend)


@both_ways
async def test_requests_that_two_servers_fail_are_to_blame_and_not_the_servers(
    tools: VllmServer, plain: VllmServer, http: httpx.AsyncClient, stream: bool
) -> None:
    if RUST and stream:
        pytest.skip("it has sent a token before it fails, so nobody else can be asked")
    direct = await http.post(tools.url + CHAT, json=chat(model="tiny", **POISON))
    assert direct.status_code == 500
    routes = f"backends: {{{tools.routes('a')}, {plain.routes('b')}}}\naliases: {{front: [a, b]}}"
    async with running_gateway(routes) as gateway:
        await gateway.until_ready("a", "b")
        for number in range(8):
            message = await fails(gateway, f"hi {number}", stream=stream)
            assert direct.json()["error"]["message"] in message
            await serves_others(gateway, "a", stream=stream)
        for name in ("a", "b"):
            health = gateway.gateway.fleet[name].health
            assert (health.state, health.fails) == (State.READY, 0)
            assert gateway.metric("gateway_backend_transitions_total", backend=name, state="suspect") == 0


@both_ways
async def test_the_only_server_is_cleared_by_the_harmless_request(
    tools: VllmServer, http: httpx.AsyncClient, stream: bool
) -> None:
    async with running_gateway(f"backends: {{{tools.routes('a')}}}\naliases: {{front: [a]}}") as gateway:
        await gateway.until_ready("a")
        for number in range(8):
            body = chat(f"hi {number}", stream=stream, **POISON)
            with contextlib.suppress(httpx.RemoteProtocolError):  # of the Rust front end: cut behind a token
                answer = await gateway.client.post(CHAT, json=body)
                assert answer.status_code in (500, 502)
            await serves_others(gateway, "a", stream=stream)
        await gateway.until(lambda: gateway.state("a") is State.READY)
        assert gateway.metric("gateway_backend_transitions_total", backend="a", state="down") == 0
