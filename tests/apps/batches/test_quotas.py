"""What one client may keep holds however its requests come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest

from tests.apps.batches.filed import CHAT, Filed, filed, jsonl, line
from tests.apps.batches.test_batches import folder_of

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
