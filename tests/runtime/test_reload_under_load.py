"""The file is edited two hundred times while streams, tool calls and whole answers are asked for: no request fails, and
each valid edit is in force when it is told to be."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from simulator import SimVllm
from tests.editing import Editor, edited
from tests.raw_client import chat
from tests.support import PATIENCE, running_gateway
from tests.waiting import pace

CHAT = "/v1/chat/completions"
EDITS = 200
CLIENTS = 3
TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "lookup", "arguments": {}}\n</tool_call>'
NAMES = ("one", "two", "three")
BROKEN = [
    "backends: [",
    "",
    "  : :",
    "backends: {one: {url: 'http://127.0.0.1:1', slotz: 1}}",
    "aliases: {w: [nobody]}",
]


class Crowd:
    """Clients that ask in turn for every kind of answer, until they are told to stop; `served` counts by backend."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.stopping = False
        self.kinds = Counter[str]()
        self.served = Counter[str]()

    async def one(self, random: Random) -> None:
        while not self.stopping:
            kind = random.choice(["stream", "whole", "tools", "tool stream"])
            await getattr(self, kind.replace(" ", "_"))(f"{random.randrange(5, 40)} words")
            self.kinds[kind] += 1
            await pace(0.02)  # edits need the processor too

    async def ask(self, said: str, **more: Any) -> httpx.Response:
        answer = await self.client.post(CHAT, json=chat("w", said, **more))
        assert answer.status_code == 200, answer.text
        self.served[answer.headers["x-gateway-backend"]] += 1
        return answer

    async def whole(self, said: str) -> None:
        choice = (await self.ask(said)).json()["choices"][0]
        assert (choice["finish_reason"], len(choice["message"]["content"]) > 0) == ("stop", True)

    async def tools(self, said: str) -> None:
        answer = await self.ask(said, tools=[TOOL], vllm_xargs={"script": CALL})
        choice = answer.json()["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "lookup"

    async def stream(self, said: str) -> None:
        assert await self.streamed(said) == "stop"

    async def tool_stream(self, said: str) -> None:
        assert await self.streamed(said, tools=[TOOL], vllm_xargs={"script": CALL}) == "tool_calls"

    async def streamed(self, said: str, **more: Any) -> str:
        """How it finished; it has to be whole."""
        text = (await self.ask(said, stream=True, **more)).text
        data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        assert data[-1] == "[DONE]"
        chunks = [json.loads(line) for line in data[:-1]]
        assert not any("error" in chunk for chunk in chunks)
        ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
        assert len(ends) == 1
        return str(ends[0])


def written(random: Random, urls: list[str], number: int) -> str:
    """Another fleet: backends come, go, move and are renamed, slots change, the alias is turned around."""
    names = random.sample(NAMES, random.randint(1, 3))
    lines = [
        f"  {name}: {{url: '{random.choice(urls)}', slots: {random.randint(1, 6)}, tool_parser: hermes}}"
        for name in names
    ]
    steps = json.dumps(names) if random.random() < 0.5 else json.dumps([names])
    return "\n".join(["backends:", *lines, "aliases:", f"  w: {steps}", f"  mark{number}: [{names[0]}]", ""])


async def test_two_hundred_edits_under_load_and_no_request_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.config.edits.LOOK", 0.005)  # what is tried is not the patience
    monkeypatch.setattr("gateway.runtime.reload.REREAD", 0.01)
    random = Random(5)
    sims = [SimVllm(f"s{number}", decode=2000, slots=16) for number in range(3)]
    async with sims[0].serve() as first, sims[1].serve() as second, sims[2].serve() as third:
        urls = [first, second, third]
        file = tmp_path / "routes.yaml"
        async with (
            running_gateway(written(random, urls, 0), file=file) as gateway,
            edited(gateway, file) as editor,
            httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE, trust_env=False) as client,
        ):
            await gateway.until_ready(*gateway.gateway.fleet.states)
            crowd = Crowd(client)
            async with asyncio.TaskGroup() as group:
                for number in range(CLIENTS):
                    group.create_task(crowd.one(Random(number)))
                await edit_often(editor, random, urls)
                crowd.stopping = True
            fleet, scheduler = gateway.gateway.fleet, gateway.gateway.admission.scheduler
            await gateway.until(lambda: not fleet.retired and len(scheduler._queues) <= len(fleet.states))
            assert (scheduler.waiters, sum(scheduler.depth().values())) == ({}, 0)
            assert gateway.metric("gateway_config_reloads_total", result="taken") == EDITS * 0.9
            assert gateway.metric("gateway_config_reloads_total", result="refused") == EDITS * 0.1
        assert min(crowd.kinds.values()) > 10, "too tame to show anything"
        assert len(crowd.kinds) == 4
        assert min(crowd.served[name] for name in NAMES) > 10


async def edit_often(editor: Editor, random: Random, urls: list[str]) -> None:
    for number in range(1, EDITS + 1):
        if number % 10 == 0:
            before = editor.gateway.gateway.snapshot
            assert (await editor.save(random.choice(BROKEN) + f"\n# {number}")).after == "refused"
            assert editor.gateway.gateway.snapshot is before
        else:
            assert (await editor.save(written(random, urls, number))).after == "taken"
            assert f"mark{number}" in editor.gateway.gateway.snapshot.aliases
