"""A drain outlives that its backend is taken out of routes.yaml and put back."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.domain.health_state import State
from simulator import SimVllm
from tests.apps.cluster.joined import FAST, shared
from tests.apps.cluster.redis_server import running_redis
from tests.editing import Editor, edited, editor_of
from tests.runtime.test_reload_fleet import ask, without
from tests.support import running_gateway

PAIR = "aliases: {w: [b]}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "routes.yaml"


async def drain(e: Editor) -> None:
    assert (await e.gateway.client.post("/admin/backends/a/drain")).json()["state"] == "draining"


async def take_out(e: Editor) -> None:
    """And wait until nothing is left of it."""
    await e.save(without(e.text, "a"))
    await e.gateway.until(lambda: not e.gateway.gateway.fleet.retired)


async def test_a_backend_that_is_put_back_is_still_drained_until_it_is_resumed(file: Path) -> None:
    async with editor_of(file, "a b", PAIR) as e:
        before = e.text
        await drain(e)
        for _ in range(2):
            await take_out(e)
            await e.save(before)
            told = (await e.gateway.client.get("/status")).json()["backends"]["a"]
            assert (told["state"], told["reason"]) == ("draining", "drained by an operator")
            assert (await ask(e, "a")).status_code == 503
        await e.gateway.client.post("/admin/backends/a/resume")
        await e.gateway.until_ready("a")
        await take_out(e)
        await e.save(before)
        assert e.gateway.state("a") is not State.DRAINING, "what was resumed stays so"
        await e.gateway.until_ready("a")
        assert (await ask(e, "a")).status_code == 200


async def test_a_backend_that_is_put_back_before_its_last_request_ended_is_still_drained(file: Path) -> None:
    async with editor_of(file, "a b", PAIR) as e:
        before = e.text
        state = e.gateway.gateway.fleet["a"]
        await drain(e)
        state.inflight = 1
        await e.save(without(before, "a"))
        await e.save(before)
        assert e.gateway.gateway.fleet["a"] is state
        assert e.gateway.state("a") is State.DRAINING
        state.inflight = 0


async def test_another_one_of_that_name_is_not_drained(file: Path) -> None:
    async with editor_of(file, "a +c b", PAIR) as e:
        before = e.text
        await drain(e)
        await take_out(e)
        await e.save(before.replace(e.sims["a"].url, e.sims["c"].url))
        await e.gateway.until_ready("a")
        assert (await ask(e, "a")).status_code == 200


async def test_a_backend_that_another_gateway_resumed_meanwhile_is_not_drained_again(file: Path) -> None:
    with running_redis() as redis:
        async with SimVllm("a").serve() as url, AsyncExitStack() as stack:
            backends = "".join(f"  {name}: {{url: '{url}'}}\n" for name in "ab")
            routes = f"server: {{shared: '{redis.url}?socket_timeout=2'}}\n{FAST}backends:\n{backends}"
            one = await stack.enter_async_context(running_gateway(routes, file=file))
            other = await stack.enter_async_context(running_gateway(routes))
            e = await stack.enter_async_context(edited(one, file))
            for gateway in (one, other):
                await gateway.until(lambda g=gateway: shared(g).gateways == 2)  # type: ignore[misc]  # binds the name
            await drain(e)
            await other.until(lambda: other.state("a") is State.DRAINING)
            await take_out(e)
            assert (await other.client.post("/admin/backends/a/resume")).status_code == 200
            await e.save(routes)
            await one.until_ready("a")
            await other.until_ready("a")
