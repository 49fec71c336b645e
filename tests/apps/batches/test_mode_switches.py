"""Batches that are for a mode: the fleet is switched to it, and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.domain.health_state import State
from tests.apps.batches.filed import Filed, jsonl, line
from tests.apps.control.machine import Machine, begin, ended, gateway_of, machine
from tests.raw_client import chat
from tests.waiting import until_said

MODES = "{daily: [a], judges: [b]}"
WHEN = {"when": '{"mode": "judges"}'}


@asynccontextmanager
async def fleet(folder: Path, more: str = "") -> AsyncIterator[tuple[Machine, Filed]]:
    """Backend a of the mode in force, and b of the mode judges, which does not run."""
    state = f"server: {{data: '{folder / 'state'}'}}\n{more}"
    async with machine(folder, "a", away="b") as there, gateway_of(there, MODES, state) as gateway:
        gateway.gateway.apps.batches._switches.quiet = 0.0
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
            yield there, Filed(there.sims["b"], gateway, client)


async def waits(f: Filed, said: str) -> str:
    """Why the only batch waits, once that has this in it."""

    async def told() -> Any:
        found = (await f.gateway.client.get("/status")).json()["batches"][0]["waits"]
        return found if found and said in found else None

    return str(await until_said(told, within=30))


def window(begins: timedelta, ends: timedelta) -> str:
    now = datetime.now()
    return f"{now + begins:%H:%M}-{now + ends:%H:%M}"


async def test_the_fleet_is_switched_for_it_and_back(tmp_path: Path) -> None:
    async with fleet(tmp_path) as (there, f):
        batch = await f.begin(jsonl([line(f"r{n}", model="b") for n in range(3)]), metadata=WHEN)
        done = await f.ended(batch)
        assert (done.status, done.request_counts and done.request_counts.completed) == ("completed", 3)
        assert done.in_progress_at is not None
        await there.until_asked("start a")
        assert there.orders == ["stop a", "start b", "stop b", "start a"]
        await f.gateway.until(lambda: f.gateway.gateway.snapshot.mode == "daily")


async def test_nothing_is_stopped_beside_requests_that_need_it(tmp_path: Path) -> None:
    async with fleet(tmp_path) as (there, f):
        there.sims["a"].fault("hang_before_content", count=1)
        asked = asyncio.create_task(f.gateway.client.post("/v1/chat/completions", json=chat("a")))
        await there.sims["a"].wait_inflight(1)
        batch = await f.begin(jsonl([line("r", model="b")]), metadata=WHEN)
        assert await waits(f, "until a has had no requests for a while")
        assert there.orders == []
        there.sims["a"].clear()
        assert (await asked).status_code == 200
        assert (await f.ended(batch)).status == "completed"


async def test_outside_of_its_window_it_waits(tmp_path: Path) -> None:
    between = window(timedelta(hours=2), timedelta(hours=3))
    async with fleet(tmp_path) as (there, f):
        settings = {"when": f'{{"mode": "judges", "between": "{between}"}}'}
        batch = await f.begin(jsonl([line("r", model="b")]), metadata=settings)
        assert await waits(f, "its time") == f"It waits for its time, {between}."
        errors = (await f.client.batches.retrieve(batch.id)).errors
        assert errors is not None
        assert (errors.data or [])[0].code == "waiting_for_schedule"
        assert there.orders == []
        await f.client.batches.cancel(batch.id)
        assert (await f.ended(batch)).status == "cancelled"


async def test_it_is_switched_once_only(tmp_path: Path) -> None:
    """Whoever orders another mode keeps it."""
    async with fleet(tmp_path) as (there, f):
        there.sims["b"].fault("hang_before")
        batch = await f.begin(jsonl([line(f"r{n}", model="b") for n in range(40)]), metadata=WHEN)
        await there.sims["b"].wait_inflight(8)
        order = await begin(f.gateway, "daily")
        await f.gateway.until(lambda: f.gateway.state("b") is State.DRAINING)
        there.sims["b"].clear()
        assert (await ended(f.gateway, order))["state"] == "done"
        assert await waits(f, "once, and left")
        await f.client.batches.cancel(batch.id)
        await f.ended(batch)
        assert there.orders == ["stop a", "start b", "stop b", "start a"]


async def test_a_mode_takes_an_admins_key(tmp_path: Path) -> None:
    keys = 'clients: {one: {key: "sk-one-0123456789"}, ops: {key: "sk-ops-0123456789", admin: true}}\n'
    async with fleet(tmp_path, keys) as (_, f):
        content = jsonl([line("r", model="b")])
        with pytest.raises(openai.PermissionDeniedError, match="is no admin: a batch that switches the mode"):
            await f.begin(content, f.as_client("sk-one-0123456789"), metadata=WHEN)
        ops = f.as_client("sk-ops-0123456789")
        assert (await f.ended(await f.begin(content, ops, metadata=WHEN), ops)).status == "completed"


async def test_a_mode_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async with fleet(tmp_path) as (_, f):
        with pytest.raises(openai.BadRequestError, match=r"there is no mode .*night.*; modes: daily, judges"):
            await f.begin(jsonl([line("r", model="b")]), metadata={"when": '{"mode": "night"}'})
