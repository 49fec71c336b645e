"""Backends that fail in every way at random, clients of every manner, a routes.yaml that is edited, all at once: each
answer is whole and right, or a plain error, or a stream that is told to be broken. The single cases are in the other
files."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections import Counter
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from random import Random

import pytest

from gateway.domain.health_state import State
from simulator import SimOllama, SimVllm
from simulator.audio import SimAudio
from simulator.base import Sim
from simulator.faults import KINDS
from tests.chaos_answers import CHAT, Asked, check, read_answer
from tests.chaos_doors import BACKEND, knock, run_batch
from tests.chaos_hostile import hostile_backend, misbehave
from tests.editing import Editor, edited
from tests.raw_client import RawClient, raw_client
from tests.support import RunningGateway, running_gateway
from tests.waiting import pace, turns, until_said

CLIENTS, EACH = int(os.environ.get("CHAOS_CLIENTS", "50")), 24  # how many there are, and what each asks
SECONDS = float(
    os.environ.get("CHAOS_SECONDS", "60")
)  # so long (`make chaos`: ten minutes); 0 = until all has been asked
HOSTILE = max(1, CLIENTS // 10)  # so many clients more, which mean no good
BATCHES = max(1, CLIENTS // 20)  # and so many that run one batch after the other
WITHIN = 30.0  # seconds until an answer is called hung; a backend that has to serve all alone takes half of that
SAID = {"leak_tools", "leak_think", "empty_turn", "wrong_parser", "garbage", "repetition"}  # change what is said
BROKEN = ["abort", "error_finish", "end_without_finish"]  # ends that Ollama's own format cannot tell
CUTS = [*BROKEN, "die_mid", "error_event", "hang_mid"]  # the more telling ones
ROUTES = (
    """
defaults:
  timeouts: {{connect: 500ms, first_byte: 600ms, idle: 600ms, hold: 300ms}}
  health: {{every: 100ms, fail_after: 3, recover_after: 2}}
backends:
  v1: {{url: "{v1}", slots: 16, tool_parser: hermes}}
  v2: {{url: "{v2}", slots: 16, tool_parser: hermes}}
  v3: {{url: "{v3}", slots: 16, tool_parser: hermes}}
  o1: {{url: "{o1}", slots: 16, engine: ollama, model: small, context: 65536}}
  bad: {{url: "{bad}", slots: 16, model: small, context: 65536, tool_parser: hermes}}
"""
    + BACKEND
    + """
aliases:
  main: [[v1, v2, v3], o1]
  chain: [v1, v2, v3]
  turns: {{use: [[v1, v2, v3]], balance: round_robin}}
  local: [o1, v3]
  risky: [bad, v1]
"""
)


class Storm:
    """Clients and faults by a fixed seed; `seen` counts how the answers ended."""

    def __init__(self, gateway: RunningGateway, editor: Editor, sims: dict[str, Sim]) -> None:
        self.gateway = gateway
        self.editor = editor
        self.sims = sims
        self.seen = Counter[str]()

    async def run(self) -> None:
        text = self.editor.text
        faults = asyncio.create_task(self.break_things(Random(1)))
        edits = asyncio.create_task(self.edit(Random(0), text))
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(self.client(Random(number + 2)))
            for number in range(HOSTILE):
                group.create_task(self.hostile_client(Random(f"hostile {number}")))
                group.create_task(self.knocking_client(Random(f"doors {number}")))
            for number in range(BATCHES):
                group.create_task(self.batches(Random(f"batches {number}")))
        edits.cancel()
        await asyncio.gather(edits, return_exceptions=True)
        await self.editor.until_in_force(text)
        faults.cancel()
        for sim in self.sims.values():
            if not sim.alive:
                await sim.revive()
            sim.clear()

    async def break_things(self, random: Random) -> None:
        kinds = [*(kind for kind in KINDS if kind not in SAID), *CUTS, *CUTS]
        while True:
            await pace(random.uniform(0.05, 0.3))
            name, roll = random.choice(list(self.sims)), random.random()
            sim = self.sims[name]
            if not sim.alive:
                await sim.revive()
            elif roll < 0.1:
                await sim.kill()
            elif roll < 0.5:
                sim.clear()
            else:
                kind = random.choice([k for k in kinds if name != "o1" or k not in BROKEN])
                status, after, count = (
                    random.choice([400, 401, 429, 500, 503]),
                    random.randrange(8),
                    random.choice([1, 3, 9]),
                )
                sim.fault(kind, status=status, after=after, count=count, delay=0.2, reset=random.random() < 0.5)

    async def edit(self, random: Random, text: str) -> None:
        """Other slots; v3 taken out, and back; every fourth time a mistake."""
        for number in count(1):
            await pace(random.uniform(0.1, 0.5))
            edited = text.replace("slots: 16", f"slots: {random.randint(4, 16)}") + f"# {number}\n"
            if random.random() < 0.4:
                lines = [line for line in edited.splitlines(keepends=True) if not line.startswith("  v3:")]
                edited = "".join(lines).replace(", v3", "")
            await self.editor.save(edited if number % 4 else edited + "oops: [")

    async def client(self, random: Random) -> None:
        end, asked = time.monotonic() + SECONDS, 0
        while asked < EACH or time.monotonic() < end:
            asked += 1
            roll = random.random()
            async with raw_client(self.gateway.url, receive_buffer=4096 if roll > 0.9 else None) as client:
                if roll < 0.25:
                    await self.leave(client, Asked(random), random)
                elif roll < 0.4:
                    await self.ask(client, *[Asked(random) for _ in range(3)])  # pipelined
                else:
                    await self.ask(client, Asked(random))

    async def hostile_client(self, random: Random) -> None:
        end, asked = time.monotonic() + SECONDS, 0
        while asked < EACH or time.monotonic() < end:
            asked += 1
            async with asyncio.timeout(WITHIN), raw_client(self.gateway.url) as client:
                await misbehave(client, random)
            self.seen["hostile"] += 1
            await pace(random.random() * 0.05)

    async def knocking_client(self, random: Random) -> None:
        """At all other doors; a tenth leaves at a random byte."""
        end, asked = time.monotonic() + SECONDS, 0
        while asked < EACH or time.monotonic() < end:
            asked += 1
            self.seen[f"door {await knock(self.gateway.url, random)}"] += 1
            await pace(random.random() * 0.05)

    async def batches(self, random: Random) -> None:
        end, asked = time.monotonic() + SECONDS, 0
        while asked < 2 or time.monotonic() < end:
            asked += 1
            self.seen[f"batch {await run_batch(self.gateway.url, random)}"] += 1

    async def ask(self, client: RawClient, *requests: Asked) -> None:
        await client.send(b"".join(asked.sent for asked in requests))
        for asked in requests:
            async with asyncio.timeout(WITHIN):
                answer = await read_answer(client)
            try:
                self.seen[check(asked, answer)] += 1
            except AssertionError as wrong:
                wrong.add_note(f"asked: {str(asked.body)[-600:]}\nanswer: {str(answer)[-1500:]}")
                raise
            if answer.status != 200:
                await pace(0.15)  # so that there is something to break again
            if not answer.ended:
                return

    async def leave(self, client: RawClient, asked: Asked, random: Random) -> None:
        whole = asked.sent
        await client.send(whole if random.random() < 0.8 else whole[: random.randrange(len(whole))])
        await pace(random.random() * 0.05)  # anywhere in its life
        random.choice([RawClient.close, RawClient.reset, RawClient.half_close])(client)
        self.seen["left"] += 1

    async def calm(self) -> None:
        """Every backend is back once it was asked again."""
        states = [state for state in self.gateway.gateway.fleet.states.values() if state.name != "bad"]

        async def ready() -> bool:
            for model in ("turns", "local", "chain"):
                body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
                await self.gateway.client.post(CHAT, json=body)
            return all(state.health.state is State.READY for state in states)

        await until_said(ready, WITHIN)


def known_windows(gateway: RunningGateway) -> dict[str, int | None]:
    """Of all backends but the one that lies about its own."""
    now, states = time.monotonic(), gateway.gateway.fleet.states.values()
    return {state.name: state.window(now) for state in states if state.name != "bad"}


@pytest.mark.timeout(max(300.0, 1.5 * SECONDS))
async def test_in_a_storm_of_faults_every_answer_is_whole_or_refused_or_told_to_be_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # else the backends are out for most of the storm
    for module, name in (("health_machine", "BACKOFF"), ("health_state", "STALL"), ("health_state", "QUIET")):
        monkeypatch.setattr(f"gateway.domain.{module}.{name}_LEAST", 0.1)
        monkeypatch.setattr(f"gateway.domain.{module}.{name}_MOST", 0.4)
    gc.collect()
    tasks, files = asyncio.all_tasks(), len(os.listdir("/proc/self/fd"))
    async with AsyncExitStack() as stack:
        sims: dict[str, Sim] = {name: SimVllm(name, slots=16, decode=2000) for name in ("v1", "v2", "v3")}
        sims["o1"] = SimOllama("o1", models=["small"], context=65536, slots=16, decode=2000, load=0.01)
        urls = {name: await stack.enter_async_context(sim.serve()) for name, sim in sims.items()}
        urls["ears"] = await stack.enter_async_context(SimAudio("ears", ["transcriptions", "speech"]).serve())
        urls["bad"] = await stack.enter_async_context(hostile_backend(Random("hostile")))
        file = tmp_path / "routes.yaml"
        gateway = await stack.enter_async_context(running_gateway(ROUTES.format(**urls), file=file))
        editor = await stack.enter_async_context(edited(gateway, file))
        await gateway.until_ready(*sims)
        for state in gateway.gateway.fleet.states.values():
            state.health.backoff = 0.1
        windows = known_windows(gateway)
        storm = Storm(gateway, editor, sims)
        await storm.run()
        await storm.calm()
        await gateway.until(gateway.idle)
        await gateway.until(lambda: not gateway.gateway.fleet.retired)
        states = gateway.gateway.fleet.states.values()
        assert [(s.inflight, s.prompt_tokens, s.health.trial) for s in states] == [(0, 0, False)] * len(states)
        assert known_windows(gateway) == windows
        enough = {
            "whole": 20,
            "stream": 30,
            "message": 5,
            "message stream": 10,
            "told to be broken": 2,
            "left": 20,
            "hostile": 50,
            "door left": 1,
            "door 2xx": 10,
        }
        for kind, least in enough.items():
            assert storm.seen[kind] >= least, f"too tame to show anything: {storm.seen}"
        assert any(kind.startswith("batch c") for kind in storm.seen), storm.seen  # completed, or cancelled
    await turns(5)  # what was closed is taken off in the loop's next rounds
    gc.collect()
    assert asyncio.all_tasks() == tasks
    assert len(os.listdir("/proc/self/fd")) <= files
    errors = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert {error for error in errors if "is not valid, what was before stays in force" not in error} == set()
    assert {result.after for result in editor.results} == {"taken", "refused"}
