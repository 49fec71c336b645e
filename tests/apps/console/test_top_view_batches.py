"""`gateway top`: the batches, how far each is, and when it will be done."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from click.testing import CliRunner

from gateway.cli.main import cli
from simulator import SimVllm
from tests.apps.batches.filed import filed, jsonl, line
from tests.apps.console.test_top import text

KEYS = 'clients: {one: {key: "sk-one-0123456789"}, two: {key: "sk-two-0123456789"}, ops: {key: "ops", admin: true}}'


def batch(**more: Any) -> dict[str, Any]:
    """As `/status` has it."""
    counts = {"total": 7792, "completed": 1200, "failed": 3, "rate": 12.34, "left": 534.0}
    named = {"id": "batch_0123456789abcdef01234567", "client": "one", "status": "in_progress", "models": ["qwen36"]}
    return {**named, **counts, **more}


def test_a_batch_with_its_lines_its_rate_and_the_time_that_is_left() -> None:
    shown = text(batches=[batch(), batch(id="batch_old", status="completed")])
    assert re.search(r"batch_01234567 +in_progress +1,203/7,792 +3 +12\.3/s +9 min +one +qwen36", shown)
    assert "batch_old" not in shown, "what has ended gives way to what is under way"


def test_the_last_batch_stays_when_it_has_ended() -> None:
    ended = batch(status="expired", rate=None, left=None)
    assert re.search(r"batch_01234567 +expired +1,203/7,792 +3 +one +qwen36", text(batches=[ended]))


def test_many_batches_are_counted() -> None:
    assert "and 4 more" in text(80, 60, batches=[batch(id=f"batch_{n}") for n in range(10)])
    assert "models" not in text(batches=[])


async def top(url: str, key: str) -> str:
    """In a thread: the gateway that it asks lives in this loop."""
    runner = CliRunner(env={"COLUMNS": "120"})
    answer = await asyncio.to_thread(runner.invoke, cli, ["top", "--gateway", url, "--key", key, "--once"])
    assert answer.exit_code == 0, answer.output
    return answer.output


async def test_a_batch_under_way_is_shown_to_its_client_and_to_admins() -> None:
    async with filed(SimVllm("a", served=["m"], decode=20.0), key="sk-one-0123456789", top=KEYS, slots=2) as f:
        under_way = await f.begin(jsonl([line(f"r{n}", "5 words please") for n in range(500)]))
        await f.gateway.until(lambda: f.gateway.metric("gateway_batch_lines_total", result="completed") >= 6)
        for key in ("sk-one-0123456789", "ops"):
            shown = await top(f.gateway.url, key)
            assert re.search(rf"{under_way.id[:14]} +in_progress +\d+/500 +[\d.]+/s +\d+ \w+ +one +chat", shown), shown
        assert under_way.id[:14] not in await top(f.gateway.url, "sk-two-0123456789")
        await f.client.batches.cancel(under_way.id)
        await f.ended(under_way)
        assert re.search(rf"{under_way.id[:14]} +cancelled +\d+/500 +one +chat", await top(f.gateway.url, "ops"))
