"""`/status/plan`: the memory plan beside what the nodes hold."""

from __future__ import annotations

from simulator import SimVllm
from tests.apps.page.test_status import FAST, two
from tests.support import running_gateway


async def test_the_memory_plan_stands_beside_what_the_nodes_hold() -> None:
    small = SimVllm("small", served=["Qwen/Qwen3-4B-Instruct-2507"], context=16384)
    async with small.serve() as url:
        port = url.rpartition(":")[2]
        command = f"vllm serve Qwen/Qwen3-4B-Instruct-2507 --port {port} --gpu-memory-utilization 0.1"
        routes = (
            f"{FAST}nodes: {{spark1: {{address: 127.0.0.1, memory: 119.67GiB}}}}\n"
            f"backends: {{small: {{node: spark1, launch: {{command: {command} --max-model-len 16384}}}}}}\n"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("small")
            answer = (await gateway.client.get("/status/plan")).json()
    spark = answer["nodes"]["spark1"]
    assert (spark["order"], spark["live"], answer["error"]) == (["small"], None, None)
    assert spark["backends"]["small"]["kv_tokens"] > 16384
    assert answer["svg"].startswith("<svg")


async def test_a_catalogue_that_cannot_be_read_is_told_instead_of_the_plan() -> None:
    async with two("catalog: /nowhere/at/all.yaml\n") as (gateway, *_):
        answer = (await gateway.client.get("/status/plan")).json()
    assert answer["nodes"] == {}
    assert "/nowhere/at/all.yaml" in answer["error"]
