"""What is known of an engine's prefix cache ends with the engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.config.load import load_text
from simulator import SimVllm
from tests.raw_client import chat
from tests.support import running_gateway


@pytest.mark.parametrize("how", ["restarted", "removed"])
async def test_the_cache_of_an_engine_that_has_ended_is_forgotten(how: str) -> None:
    async with SimVllm("first").serve() as one, SimVllm("second").serve() as other:
        backends = {"first": one, "second": other}
        routes = "backends: {%s}\naliases: {both: [%s]}\n"

        def file(*names: str) -> str:
            listed = ", ".join(f"{name}: {{url: '{backends[name]}'}}" for name in names)
            return routes % (listed, f"[{', '.join(names)}]")

        async with running_gateway(file("first", "second")) as gateway:
            await gateway.until_ready("first", "second")
            reply = await gateway.client.post("/v1/chat/completions", json=chat("both"))
            served = reply.headers["x-gateway-backend"]
            placements = gateway.gateway.services.placements
            assert len(placements) > 0
            if how == "restarted":
                state = gateway.gateway.fleet.states[served]
                state.saw_start(1.0)  # the first one that is seen may be the one that answered
                state.saw_start(2.0)
            else:
                (left,) = backends.keys() - {served}
                edited = replace(
                    load_text(file(left), "routes.yaml", {}).snapshot, server=gateway.gateway.snapshot.server
                )
                await gateway.gateway.put_in_force(edited)
            await gateway.until(lambda: len(placements) == 0)
