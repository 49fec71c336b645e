"""`gateway bench`: an alias beside its backend."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from gateway.apps.bench.benchmark import UnsuitableOptions
from gateway.apps.bench.targets import GatewayTarget, UnmeasurableTarget, is_same_here
from gateway.config.load import load_text
from simulator import SimOllama, SimVllm
from tests.apps.bench.measuring import NOWHERE, PER_TARGET, TOKENS, chats, measured, notes, prompts, qwen
from tests.support import PATIENCE, running_gateway


async def test_an_alias_is_measured_beside_its_backend() -> None:
    sim = qwen()
    async with sim.serve() as url:
        routes = f"backends: {{a: {{url: '{url}', slots: 2}}}}\naliases: {{chat: {{use: [a], params: {{top_p: 0.5}}}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            _, told = await measured(gateway.gateway.snapshot, gateway)
    assert told["ok"], told["errors"]
    assert told["backend"] == "a"
    assert [(row["via"], row["asked"], row["runs"]) for row in told["single"]] == [
        (way, length, 2) for length in (300, 900) for way in ("gateway", "direct")
    ]
    for row in told["single"]:
        assert row["prompt_tokens"]["median"] == pytest.approx(row["asked"], rel=0.1)
        assert row["completion_tokens"]["low"] == TOKENS
        assert row["decode_rate"]["median"] > 0
    assert [(row["via"], row["concurrency"], row["blocks"]) for row in told["sweep"]] == [
        ("gateway", 2, 2),
        ("direct", 2, 2),
    ]
    assert all(row["output_rate"]["n"] == 2 for row in told["sweep"])
    assert [row["prompt_tokens"] for row in told["added"]["single"]] == [300, 900]
    assert all(row["ttft"]["n"] == 2 for row in told["added"]["single"])
    assert told["added"]["sweep"][0]["output_ratio"]["median"] > 0
    assert Counter(run["via"] for run in told["runs"]) == {"gateway": 8, "direct": 8}
    assert "answers hold thoughts" in notes(told)

    both = chats(sim)
    assert len(both) == 2 * PER_TARGET
    texts = prompts(both)
    assert len({text[:20] for text in texts}) == len(texts), "each begins with a nonce of its own"
    assert not any(run["cached"] for run in told["runs"]), "nothing came out of the prefix cache"
    bodies = [{**request.json, "messages": None, "max_tokens": None, "min_tokens": None} for request in both]
    assert all(body == bodies[0] for body in bodies), "what goes direct is what the gateway sends"
    assert (bodies[0]["model"], bodies[0]["top_p"], bodies[0]["ignore_eos"]) == ("Qwen3.6-35B", 0.5, True)


async def test_ollama_is_asked_by_its_own_api_both_ways() -> None:
    """Another `num_ctx` would have it load the model anew, at every turn."""
    sim = SimOllama(models=["qwen3:8b"], prefill=2e5, decode=2000.0, load=0.0)
    async with sim.serve() as url:
        backend = f"{{engine: ollama, url: '{url}', model: 'qwen3:8b', context: 8192}}"
        async with running_gateway(f"backends: {{a: {backend}}}\naliases: {{chat: [a]}}") as gateway:
            await gateway.until_ready("a")
            _, told = await measured(gateway.gateway.snapshot, gateway)
    assert told["ok"], told["errors"]
    assert {row["via"] for row in told["single"]} == {"gateway", "direct"}
    asked = chats(sim, "/api/chat")
    assert len(asked) >= 2 * PER_TARGET
    assert {request.json["options"]["num_ctx"] for request in asked} == {8192}
    assert told["added"]["single"][0]["ttft"]["n"] == 2


async def test_a_fallback_is_named_and_measured_beside_itself() -> None:
    sim = qwen()
    async with sim.serve() as url:
        routes = f"backends: {{a: {{url: '{NOWHERE}'}}, b: {{url: '{url}'}}}}\naliases: {{chat: [a, b]}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("b")
            _, told = await measured(gateway.gateway.snapshot, gateway)
    assert told["backend"] == "b"
    assert "chat is not served by its first step now: this is what b does" in notes(told)
    assert {row["backend"] for row in told["single"] if row["via"] == "direct"} == {"b"}


async def test_what_two_backends_side_by_side_did_is_not_one_figure() -> None:
    one, two = qwen(), qwen()
    async with one.serve() as first, two.serve() as second:
        steps = "aliases: {chat: {use: [[a, b]], balance: round_robin}}"
        routes = f"backends: {{a: {{url: '{first}'}}, b: {{url: '{second}'}}}}\n{steps}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            _, told = await measured(gateway.gateway.snapshot, gateway)
    rows = [row for row in told["single"] if row["via"] == "gateway"]
    assert {row["backend"] for row in rows} == {"a", "b"}
    assert sum(row["runs"] for row in rows) == 4
    compared = sum(row["ttft"]["n"] for row in told["added"]["single"] if row["ttft"] is not None)
    assert compared == sum(row["runs"] for row in rows if row["backend"] == told["backend"])


async def test_a_backend_that_cannot_be_reached_from_here_leaves_the_alias_measured() -> None:
    """A client that is no admin is not told where the gateway reaches it; the file says another place."""
    sim = qwen()
    async with sim.serve() as url:
        text = "clients: {{me: {{key: k-123456}}}}\nbackends: {{a: {{url: '{}'}}}}\naliases: {{chat: [a]}}"
        async with running_gateway(text.format(url)) as gateway:
            await gateway.until_ready("a")
            elsewhere = load_text(text.format(NOWHERE)).snapshot
            _, told = await measured(elsewhere, gateway, key="k-123456")
            assert told["ok"], told["errors"]
            assert "not measured directly: http://127.0.0.1:9 does not answer" in notes(told)
            _, told = await measured(None, gateway, key="k-123456")
            assert "not measured directly: that takes the routes.yaml" in notes(told)
            _, told = await measured(elsewhere, gateway, key="k-123456", direct=False)
            assert "directly" not in notes(told)
            with pytest.raises(UnmeasurableTarget, match="answered 401"):
                await measured(elsewhere, gateway)
    assert {row["via"] for row in told["single"]} == {"gateway"}


async def test_the_backend_is_asked_where_the_gateway_reaches_it() -> None:
    """As with `gateway demo`, whose backends are simulated elsewhere than the file says."""
    sim = qwen()
    async with sim.serve() as url:
        text = "backends: {{a: {{url: '{}'}}}}\naliases: {{chat: [a]}}"
        async with running_gateway(text.format(url)) as gateway:
            await gateway.until_ready("a")
            _, told = await measured(load_text(text.format(NOWHERE)).snapshot, gateway)
    assert told["ok"], told["errors"]
    assert {row["via"] for row in told["single"]} == {"gateway", "direct"}


@pytest.mark.parametrize(
    ("url", "gateway", "reached"),
    [
        ("http://192.168.1.11:8001", "http://192.168.1.5:4000", True),
        ("http://127.0.0.1:8001", "http://localhost:4000", True),
        ("http://127.0.0.1:8001", "http://192.168.1.5:4000", False),
        ("http://localhost:8001", "http://192.168.1.5:4000", False),
    ],
)
def test_an_address_that_means_the_gateways_own_machine_is_not_ours(url: str, gateway: str, reached: bool) -> None:
    assert is_same_here(url, gateway) is reached


async def test_no_prompt_leaves_the_lan_unless_clouds_are_asked_for() -> None:
    sim = SimVllm(served=["m"], generic=True)
    async with sim.serve() as url:
        cloud = f"{{engine: openai, url: '{url}', cloud: true, model: m}}"
        routes = f"backends: {{a: {{url: '{NOWHERE}'}}, c: {cloud}}}\naliases: {{chat: [a, c], far: [c]}}"
        async with running_gateway(routes + "\ndefaults: {queue: {max_wait: 100ms}}") as gateway:
            with pytest.raises(UnmeasurableTarget, match="the warm-up failed: answered"):
                await measured(gateway.gateway.snapshot, gateway)
            assert not sim.requests
            with pytest.raises(UnsuitableOptions, match="costs money: say --cloud"):
                await measured(gateway.gateway.snapshot, gateway, name="far")
            _, told = await measured(gateway.gateway.snapshot, gateway, name="far", cloud=True)
    assert told["ok"], told["errors"]
    assert sim.requests


async def test_slots_that_our_own_direct_requests_held_are_waited_for() -> None:
    """The gateway has seen them as somebody else's: it would have let the next requests wait."""
    sim = qwen(decode=200.0)
    async with sim.serve() as url:
        routes = f"backends: {{a: {{url: '{url}', slots: 2, health: {{every: 100ms}}}}}}\naliases: {{chat: [a]}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            target = GatewayTarget(gateway.url, "chat", None, cloud=False)
            body = {"model": "Qwen3.6-35B", "prompt": "a", "max_tokens": 4000, "ignore_eos": True}
            foreign = asyncio.create_task(gateway.client.post(url + "/v1/completions", json=body, timeout=60))
            try:
                await gateway.until(lambda: gateway.gateway.fleet["a"].foreign > 0)
                assert await target.foreign_requests("a") == 1
                settled = asyncio.create_task(target.settle("a"))
                looks = sim.seen["/metrics"]
                await gateway.until(lambda: sim.seen["/metrics"] >= looks + 4)
                assert not settled.done()
                foreign.cancel()
                async with asyncio.timeout(PATIENCE):
                    await settled
                assert gateway.gateway.fleet["a"].foreign == 0
            finally:
                foreign.cancel()
                await target.close()
