"""Gateway and engines start, end and come back in any order: nothing has to be done by hand."""

from __future__ import annotations

from pathlib import Path

from bench.ports import free_ports
from simulator import SimVllm
from tests.gateway_process import GatewayProcess, gateway_process
from tests.raw_client import chat
from tests.waiting import until_said

ROUTES = """\
server: {{data: {data}}}
defaults: {{health: {{every: 200ms, fail_after: 1, recover_after: 1, canary: none}}}}
backends: {{a: {{url: "http://127.0.0.1:{port}", slots: 4}}}}
aliases: {{chat: [a]}}
"""


async def answers(at: GatewayProcess) -> bool:
    return (await at.client.post("/v1/chat/completions", json=chat("chat"))).status_code == 200


async def test_whatever_starts_first_all_comes_back_by_itself(tmp_path: Path) -> None:
    port = free_ports(1)
    routes = ROUTES.format(data=tmp_path / "state", port=port)
    sim = SimVllm("a", served=["m"])
    async with gateway_process(tmp_path, routes) as at:
        assert (await at.client.get("/ready")).status_code == 503, "the gateway is there before its engine"
        async with sim.serve(port=port):
            await until_said(lambda: answers(at))
        await until_said(lambda: refused(at))
        async with sim.serve(port=port):  # the engine has been away
            await until_said(lambda: answers(at))
    async with sim.serve(port=port), gateway_process(tmp_path, routes) as at:  # the first gateway was killed
        await until_said(lambda: answers(at))


async def refused(at: GatewayProcess) -> bool:
    reply = await at.client.post("/v1/chat/completions", json=chat("chat"))
    return reply.status_code == 429 and reply.json()["error"]["code"] == "backend_warming"
