"""Several models of one engine (`on`): its slots, health and checks are there once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from gateway.routing.alias_status import view_backend
from simulator import SimVllm
from tests.support import RunningGateway, from_clients, running_gateway, write

ROUTES = """
defaults: {{health: {{every: 100ms, fail_after: 1, canary: {canary}}}}}
backends:
  base: {{url: "{url}", model: base, slots: 2, tool_parser: hermes}}
  lora: {{on: base, model: my-lora}}
  other: {{url: "{other}"}}
aliases:
  lora: [lora, other]
"""


@asynccontextmanager
async def fleet(
    file: Path | None = None, *served: str, canary: str = "1h"
) -> AsyncIterator[tuple[RunningGateway, SimVllm]]:
    sim = SimVllm(name="a", served=served or ["base", "my-lora"], context=32768, tool_parser="hermes")
    spare = SimVllm(name="b", served=["spare"], context=32768)
    async with (
        sim.serve(port=0) as url,
        spare.serve(port=0) as other,
        running_gateway(ROUTES.format(url=url, other=other, canary=canary), file=file) as gateway,
    ):
        await gateway.until_ready("base", "other")
        yield gateway, sim


async def ask(gateway: RunningGateway, model: str, *, words: int = 3) -> httpx.Response:
    said = [{"role": "user", "content": f"Say it in {words} words."}]
    return await gateway.client.post("/v1/chat/completions", json={"model": model, "messages": said})


async def test_an_adapter_is_asked_for_by_its_own_name_and_checked_with_its_engine() -> None:
    async with fleet() as (gateway, sim):
        assert gateway.state("lora") is gateway.state("base")
        reply = await ask(gateway, "lora")
        assert (reply.status_code, reply.headers["x-gateway-backend"]) == (200, "lora")
        assert from_clients(sim.requests)[-1].json["model"] == "my-lora"
        assert {one.json["model"] for one in sim.requests[:-1] if one.path.startswith("/v1/chat")} == {"base"}
        assert gateway.gateway.fleet["lora"].window(0.0) == 32768


async def test_the_slots_of_the_engine_are_shared() -> None:
    async with fleet(canary="none") as (gateway, sim):
        sim.fault("hang_before")
        asked = [asyncio.create_task(ask(gateway, model)) for model in ("base", "lora")]
        states = gateway.gateway.fleet.states
        await gateway.until(lambda: states["base"].inflight == states["lora"].inflight == 1)
        assert states["base"].is_full
        assert states["lora"].is_full
        third = asyncio.create_task(ask(gateway, "lora"))
        await gateway.until(lambda: gateway.gateway.services.admission.queue_depth().get("lora") == 1)
        sim.clear()
        asked[0].cancel()  # a slot of the one model is free for the other
        assert (await third).headers["x-gateway-backend"] == "lora"
        asked[1].cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def test_an_engine_that_is_gone_takes_its_adapters_with_it() -> None:
    async with fleet() as (gateway, sim):
        await sim.kill()
        await gateway.until(lambda: gateway.state("lora").value in ("down", "warming"))
        assert (await ask(gateway, "lora")).headers["x-gateway-backend"] == "other"


async def test_an_adapter_that_is_not_loaded_harms_no_other_model() -> None:
    async with fleet(None, "base") as (gateway, _):
        await gateway.until(lambda: bool(gateway.gateway.fleet["lora"].absent))
        assert (await ask(gateway, "lora")).headers["x-gateway-backend"] == "other"
        assert (await ask(gateway, "base")).status_code == 200
        told = (await gateway.client.get("/status")).json()
        assert told["aliases"]["lora"]["course"] == "fallback"
        view = view_backend(gateway.gateway.fleet["lora"], 0.0)
        assert "'my-lora' is no model of base" in view.drift[0]


async def test_an_adapter_that_is_unloaded_under_way_is_left_and_its_engine_is_not_blamed() -> None:
    async with fleet() as (gateway, sim):
        sim.served.remove("my-lora")
        assert (await ask(gateway, "lora")).headers["x-gateway-backend"] == "other"
        await gateway.until(lambda: bool(gateway.gateway.fleet["lora"].absent))
        assert (await ask(gateway, "base")).status_code == 200
        sim.served.append("my-lora")
        gateway.gateway.prober.hurry(gateway.gateway.fleet["lora"], read_models=True)
        await gateway.until(lambda: not gateway.gateway.fleet["lora"].absent)
        assert (await ask(gateway, "lora")).headers["x-gateway-backend"] == "lora"


async def test_an_adapter_may_come_and_go_with_an_edit(tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    async with fleet(file) as (gateway, sim):
        text = await asyncio.to_thread(file.read_text)
        write(file, text.replace("lora: {on: base, model: my-lora}", f'lora: {{url: "{sim.url}", model: my-lora}}'))
        await gateway.until(lambda: gateway.gateway.fleet["lora"].host is None)
        await gateway.until_ready("lora", "base")
        assert gateway.gateway.fleet["base"].siblings == ()
        write(file, text)
        await gateway.until(lambda: gateway.gateway.fleet["lora"].host is gateway.gateway.fleet["base"])
        assert (await ask(gateway, "lora")).headers["x-gateway-backend"] == "lora"
        write(file, "\n".join(line for line in text.splitlines() if "lora" not in line))
        await gateway.until(lambda: "lora" not in gateway.gateway.fleet.states)
        assert (await ask(gateway, "base")).status_code == 200
