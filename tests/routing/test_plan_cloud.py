"""When a prompt may leave the LAN: only when everything local before it is out for a reason the alias allows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from simulator import SimVllm
from tests.scripted import RawReply, raw_post
from tests.support import RunningGateway, running_gateway

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]
ASK: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
KEYED = "clients:\n  inside: {key: inside-key, local_only: true}\n  free: {key: free-key}\n"


@dataclass
class House:
    """Two local steps `a` and `b`, then the clouds `c1`, `c2`, `c3` in one step, under the alias `chat`."""

    gateway: RunningGateway
    sims: dict[str, SimVllm]

    async def ask(self, *headers: str, **more: Any) -> RawReply:
        return await raw_post(self.gateway.url, {**ASK, **more}, headers=headers)

    def left(self) -> bool:
        """Did any prompt leave the LAN?"""
        return any(self.sims[name].requests for name in ("c1", "c2", "c3"))


@asynccontextmanager
async def house(
    alias: str = "", clients: str = "", *, parser: str | None = "hermes", window: int = 131072
) -> AsyncIterator[House]:
    local = {n: SimVllm(name=n, served=["m"], tool_parser=parser, context=window) for n in ("a", "b")}
    clouds = {n: SimVllm(name=n, served=["m"], generic=True) for n in ("c1", "c2", "c3")}
    async with AsyncExitStack() as stack:
        lines = ["defaults: {queue: {max_wait: 100ms}}", "backends:"]
        for name, sim in (local | clouds).items():
            url = await stack.enter_async_context(sim.serve(port=0))
            cloud = ", engine: openai, cloud: true" if name in clouds else ""
            lines.append(f'  {name}: {{url: "{url}", model: m{cloud}}}')
        lines += ["aliases:", f"  chat: {{use: [a, b, [c1, c2, c3]], balance: round_robin{alias}}}", clients]
        gateway = await stack.enter_async_context(running_gateway("\n".join(lines)))
        await gateway.until_ready("a", "b")
        yield House(gateway, local | clouds)


async def test_a_local_backend_that_serves_keeps_the_prompt_inside() -> None:
    async with house() as h:
        h.sims["a"].fault("status", status=500)
        reply = await h.ask()
        assert reply.headers["x-gateway-backend"] == "b"
        assert not h.left()


async def test_a_cloud_is_asked_when_everything_local_has_failed() -> None:
    async with house() as h:
        await h.sims["a"].kill()
        h.sims["b"].fault("status", status=500)
        reply = await h.ask()
        assert (reply.headers["x-gateway-backend"], reply.headers["x-gateway-fallback"]) == ("c1", "failed")


async def test_a_prompt_goes_to_two_clouds_at_most() -> None:
    async with house() as h:
        for sim in h.sims.values():
            sim.fault("status", status=500)
        assert (await h.ask()).status == 502
        assert [len(h.sims[name].requests) for name in ("c1", "c2", "c3")] == [1, 1, 0]


# What the two local steps meet, and the word of `cloud_when` it counts as.
PAUSE: dict[str, Any] = {"kind": "status", "status": 429, "headers": {"retry-after": "30"}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]] = {
    "busy": ({}, {}, PAUSE),
    "incapable": ({"parser": None}, {"tools": TOOLS}, None),
    "too_long": ({"window": 2048}, {"messages": [{"role": "user", "content": "x" * 40_000}]}, None),
    "down": ({}, {}, {"kind": "status", "status": 500}),
}
REFUSED = {"busy": 429, "incapable": 400, "too_long": 400, "down": 502}


@pytest.mark.parametrize("allowed", ["down", "busy", "incapable", "too_long"])
@pytest.mark.parametrize("reason", CASES)
async def test_only_an_allowed_reason_leads_to_the_cloud(reason: str, allowed: str) -> None:
    shape, more, fault = CASES[reason]
    async with house(f", cloud_when: [{allowed}]", **shape) as h:
        for name in ("a", "b"):
            if fault is not None:
                h.sims[name].fault(**fault)
        reply = await h.ask(**more)
        assert h.left() == (reason == allowed)
        assert reply.status == (200 if reason == allowed else REFUSED[reason])
        if reason == allowed != "down":
            assert reply.headers["x-gateway-routed"] == reason


async def test_every_local_backend_needs_an_allowed_reason() -> None:
    async with house() as h:
        h.sims["a"].fault("status", status=500)
        h.sims["b"].fault(**PAUSE)
        assert (await h.ask()).status in (429, 502)
        assert not h.left()


async def test_the_default_is_down_only() -> None:
    async with house() as h:
        for name in ("a", "b"):
            h.sims[name].fault(**PAUSE)
        assert (await h.ask()).status == 429
        assert not h.left()


async def test_the_clients_mistake_does_not_travel() -> None:
    async with house(", cloud_when: [down, too_long, incapable, busy]") as h:
        assert (await h.ask(temperature=-1)).status == 400
        assert not h.left()


async def test_an_empty_answer_is_no_reason_to_leave_the_lan() -> None:
    async with house(", cloud_when: [down, too_long, incapable, busy]") as h:
        h.sims["a"].fault("empty_turn")
        h.sims["b"].fault("status", status=500)
        for stream in (False, True):
            reply = await h.ask(stream=stream)
            assert (reply.status, reply.ended, reply.headers["x-gateway-backend"]) == (200, True, "a")
        assert not h.left()


@pytest.mark.parametrize("how", ["header", "client"])
async def test_a_prompt_that_must_stay_in_the_lan_reaches_no_cloud(how: str) -> None:
    async with house(clients=KEYED if how == "client" else "") as h:
        for name in ("a", "b"):
            await h.sims[name].kill()
        mine = ["authorization: Bearer inside-key"] if how == "client" else ["x-gateway-local-only: 1"]
        for stream in (False, True):
            reply = await h.ask(*mine, stream=stream)
            assert reply.status == 429
            assert "may not leave" in reply.json["error"]["message"]
        assert not h.left()
        others = ["authorization: Bearer free-key"] if how == "client" else []
        assert (await h.ask(*others)).status == 200
        assert h.left()


async def test_no_header_of_the_client_goes_to_a_cloud() -> None:
    async with house() as h:
        for name in ("a", "b"):
            await h.sims[name].kill()
        await h.ask("authorization: Bearer s3cret", "x-api-key: s3cret", "cookie: s=s3cret", "user-agent: s3cret")
        (request,) = h.sims["c1"].requests
        assert "s3cret" not in str(request.headers)
        assert {"authorization", "x-api-key", "cookie"}.isdisjoint(request.headers)
