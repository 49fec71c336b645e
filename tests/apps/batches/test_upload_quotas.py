"""What one client may keep holds however its requests come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest

from gateway.apps.batches import runner
from gateway.apps.batches import store as store_module
from simulator import SimVllm
from tests.apps.batches.filed import CHAT, Filed, filed, jsonl, line
from tests.apps.batches.test_api import folder_of
from tests.waiting import until_said

SIZE = 64 * 1024
TOP = "server: {max_file: 64KiB}"


async def at_once(count: int, ask: Callable[[], Awaitable[Any]]) -> list[Any]:
    """The answers that are none of a limit; all others are."""
    found = await asyncio.gather(*(ask() for _ in range(count)), return_exceptions=True)
    refused = [one for one in found if isinstance(one, BaseException)]
    assert all(isinstance(one, openai.RateLimitError) for one in refused), refused
    return [one for one in found if not isinstance(one, BaseException)]


async def upload(f: Filed, size: int) -> Any:
    return await f.client.files.create(file=("in.jsonl", b"x" * size), purpose="batch")


@pytest.mark.parametrize(("size", "kept"), [(SIZE, 4), (SIZE // 2 + 1, 7)])
async def test_files_that_come_at_once_have_no_more_bytes_than_those_that_come_one_by_one(size: int, kept: int) -> None:
    async with filed(top=TOP) as f:
        at_first = await at_once(20, lambda: upload(f, size))
        assert len(at_first) <= kept
        one_by_one = [made for _ in range(8) for made in await at_once(1, lambda: upload(f, size))]
        assert len(at_first) + len(one_by_one) == kept
        assert len(list(folder_of(f).iterdir())) == kept
        await f.client.files.delete(one_by_one[0].id if one_by_one else at_first[0].id)
        assert (await upload(f, size)).bytes == size


async def test_files_that_come_at_once_are_no_more_than_one_client_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.apps.batches.batches.FILES_MOST", 3)
    async with filed() as f:
        assert len(await at_once(12, lambda: upload(f, 10))) <= 3
        for _ in range(4):
            await at_once(1, lambda: upload(f, 10))
        assert len([one async for one in f.client.files.list()]) == 3


async def test_batches_that_are_begun_at_once_are_no_more_than_one_client_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.apps.batches.batches.UNFINISHED_MOST", 3)
    async with filed(slots=1) as f:
        f.sim.fault("hang_before")
        file = await f.client.files.create(file=("in.jsonl", jsonl([line("r")])), purpose="batch")
        settings: Any = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        begun = await at_once(12, lambda: f.client.batches.create(**settings))
        assert len(begun) == 3
        for batch in begun:
            await f.client.batches.cancel(batch.id)
        for batch in begun:
            await f.ended(batch)


async def test_results_count_to_what_their_client_keeps_and_the_batch_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "FULL", 0.02)
    monkeypatch.setattr(runner, "LOOK", 0.02)
    async with filed(SimVllm("a", served=["m"]), slots=2, top="server: {max_file: 32KiB}") as f:
        names = [f"r{n}" for n in range(40)]
        batch = await f.begin(jsonl([line(name, f"{name}: 1000 words please") for name in names]))

        async def told() -> str | None:
            errors = (await f.client.batches.retrieve(batch.id)).errors
            said = str((errors.data or [])[0].message) if errors is not None else ""
            return said if "delete some files" in said else None

        await until_said(told, within=30)
        assert 0 < len(f.asked()) < len(names)
        with pytest.raises(openai.RateLimitError, match="may have 131072 bytes together"):
            await upload(f, 30_000)
        with pytest.raises(openai.RateLimitError, match="may have 131072 bytes together"):
            await f.client.batches.create(
                input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
            )
        before = len(f.asked())
        monkeypatch.setattr(runner, "KEPT_MOST", 100)
        done = await f.ended(batch)
        assert list((await f.results(done))[0]) == names
        assert before < len(f.asked()) == len(names)


@pytest.mark.parametrize(("words", "code"), [("no line", "storage_full"), (line("r"), "storage_full")])
async def test_lines_that_need_more_room_than_their_client_has_are_no_batch(words: Any, code: str) -> None:
    async with filed(top="server: {max_file: 64KiB}") as f:
        content = b"1\n" * 30_000 if isinstance(words, str) else b"\n".join(small(n) for n in range(800))
        assert len(content) < 64 * 1024
        batch = await f.begin(content)
        done = await f.ended(batch)
        assert done.errors is not None
        assert (done.status, [one.code for one in done.errors.data or ()]) == ("failed", [code])
        assert f.gateway.gateway.apps.batches._store.usage("open").bytes == len(content)


def small(number: int) -> bytes:
    return b'{"custom_id":"%d","url":"/v1/chat/completions","body":{"model":"m"}}' % number


async def test_batches_that_have_ended_are_forgotten_beyond_a_number_of_each_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.apps.batches.batches.ENDED_MOST", 3)
    async with filed(top="clients: {one: {key: key-one-12345678}, two: {key: key-two-12345678}}") as f:
        one, two = f.as_client("key-one-12345678"), f.as_client("key-two-12345678")
        kept = await f.begin(b"", two)
        await f.ended(kept, two)
        names = []
        for _ in range(7):
            batch = await f.begin(b"", one)
            names.append((await f.ended(batch, one)).id)
        found = [batch.id async for batch in one.batches.list()]
        assert found == names[:-5:-1]  # the newest one is forgotten with a later one
        assert [batch.id async for batch in two.batches.list()] == [kept.id]
