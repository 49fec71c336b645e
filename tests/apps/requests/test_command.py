"""`gateway requests` and `gateway why ID`, asked of a running gateway."""

from __future__ import annotations

import asyncio
import json

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import cli
from simulator import SimVllm
from tests.raw_client import chat
from tests.support import running_gateway
from tests.two_backends import CHAT


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, cli, arguments)


async def test_requests_are_listed_and_one_is_told() -> None:
    sim = SimVllm("a")
    async with sim.serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        here = ("--gateway", gateway.url)
        empty = await run("requests", *here)
        for model, id in (("a", "good"), ("nobody", "bad")):
            await gateway.client.post(CHAT, json=chat(model), headers={"x-request-id": id})
        sim.fault("hang_before")
        asking = asyncio.create_task(gateway.client.post(CHAT, json=chat("a"), headers={"x-request-id": "slow"}))
        await gateway.until(lambda: any(one.record.trying is not None for one in gateway.requests()))
        listed, lines = await run("requests", *here), await run("requests", *here, "--alias", "a", "--json")
        failed = await run("requests", *here, "--failed")
        told, running = await run("why", "good", *here), await run("why", "slow", *here)
        as_json, unknown = await run("why", "bad", *here, "--json"), await run("why", "nothing", *here)
        await gateway.client.delete("/admin/requests/slow")
        await asking
    assert empty.output == "No request.\n"
    first, second, third = listed.output.splitlines()
    assert (first.endswith(" good"), second.endswith(" bad"), third.endswith(" slow")) == (True, True, True)
    assert "model_not_found" in second
    assert "open a -> a  working" in third
    assert [json.loads(line)["id"] for line in lines.stdout.splitlines()] == ["good"]
    assert failed.output == "No request.\n"
    assert told.output.splitlines()[-1] == "The client got the whole answer."
    assert "It runs for" in running.output
    assert json.loads(as_json.stdout)["request"]["outcome"] == "model_not_found"
    assert unknown.exit_code == 1
    assert "No request with the id 'nothing' is known" in unknown.output


async def test_who_follows_misses_none_and_sees_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    async with SimVllm("a").serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        await gateway.client.post(CHAT, json=chat("a"), headers={"x-request-id": "r0"})
        loop, rounds = asyncio.get_running_loop(), iter([["r1", "r2"], [], ["r3"]])

        async def ask(ids: list[str]) -> None:
            for id in ids:
                await gateway.client.post(CHAT, json=chat("a"), headers={"x-request-id": id})
            await gateway.until(gateway.idle)

        def sleep(_: float) -> None:
            ids = next(rounds, None)
            if ids is None:
                raise KeyboardInterrupt
            asyncio.run_coroutine_threadsafe(ask(ids), loop).result(30)

        monkeypatch.setattr("gateway.apps.requests.command.time.sleep", sleep)
        followed = await run("requests", "--gateway", gateway.url, "--follow", "--json")
    assert [json.loads(line)["id"] for line in followed.stdout.splitlines()] == ["r0", "r1", "r2", "r3"]
