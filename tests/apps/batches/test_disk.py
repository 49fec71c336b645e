"""Batches on a disk that is full, or that has lost a file."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.apps.batches import runner
from gateway.apps.batches.records import BatchRecord
from gateway.apps.batches.sqlite_store import SqliteBatchStore
from simulator import SimVllm
from tests.apps.batches.filed import Filed, ended, filed, jsonl, line
from tests.apps.batches.test_sqlite_store import begun
from tests.support import running_gateway
from tests.waiting import until


@contextmanager
def pauses(seconds: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(runner, "FULL", seconds)
        yield


def store_of(f: Filed) -> SqliteBatchStore:
    store = f.gateway.gateway.apps.batches._store
    assert isinstance(store, SqliteBatchStore)
    return store


async def test_while_the_disk_is_full_answers_wait_and_no_line_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0
    add_result = SqliteBatchStore.add_result

    def counted(store: SqliteBatchStore, *args: Any, ok: bool) -> BatchRecord:
        nonlocal tries
        tries += 1
        return add_result(store, *args, ok=ok)

    monkeypatch.setattr(SqliteBatchStore, "add_result", counted)
    with pauses(0.02, monkeypatch):
        async with filed(SimVllm("a", served=["m"], decode=200.0), slots=3) as f:
            store = store_of(f)

            def fill() -> None:
                size = store._db.execute("PRAGMA page_count").fetchone()[0]
                store._db.execute(f"PRAGMA max_page_count = {size}")

            names = [f"r{n}" for n in range(60)]
            batch = await f.begin(jsonl([line(name, f"{name}: 3 words please {'x' * 3000}") for name in names]))
            await until(lambda: len(f.asked()) > 8)
            await f.gateway.gateway.apps.batches.call(fill)
            await until(lambda: tries > 20)
            before = tries
            await until(lambda: tries > before + 100)
            assert len(f.asked()) < len(names)  # nothing new begins
            assert (await f.client.batches.retrieve(batch.id)).status == "in_progress"
            await f.gateway.gateway.apps.batches.call(store._db.execute, "PRAGMA max_page_count = 1000000")
            done = await f.ended(batch)
            assert list((await f.results(done))[0]) == names
            assert set(Counter(f.asked()).values()) == {1}


async def test_a_batch_whose_input_file_is_gone_fails_and_says_so() -> None:
    async with filed() as f:
        file = await f.client.files.create(file=("in.jsonl", jsonl([line("r")])), purpose="batch")
        store_of(f).path_of(file.id).unlink()
        with pytest.raises(openai.NotFoundError):
            await f.client.files.content(file.id)
        batch = await f.client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        done = await f.ended(batch)
        assert done.status == "failed"
        assert done.errors is not None
        assert [one.code for one in done.errors.data or ()] == ["input_file_lost"]
        await f.client.files.delete(file.id)


async def test_a_line_whose_input_file_is_gone_fails_alone() -> None:
    async with filed(slots=1) as f:
        f.sim.fault("hang_before")
        batch = await f.begin(jsonl([line("first", "first"), line("second", "second")]))
        await until(lambda: f.asked() == ["first"])
        store_of(f).path_of(batch.input_file_id).unlink()
        f.sim.clear()
        done = await f.ended(batch)
        output, errors = await f.results(done)
        assert done.status == "completed"
        assert list(output) == ["first"]
        assert errors["second"]["error"]["code"] == "input_file_lost"


async def test_an_upload_that_the_disk_refuses_is_a_clear_error() -> None:
    async with filed() as f:
        await f.client.files.list()
        shutil.rmtree(store_of(f).folder)
        with pytest.raises(openai.InternalServerError) as refused:
            await f.client.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
        assert (refused.value.status_code, refused.value.code) == (503, "resources_exhausted")
        assert "server.data" in refused.value.message


def broken(*_: object) -> list[BatchRecord]:
    raise sqlite3.OperationalError("disk I/O error")


async def test_what_was_under_way_goes_on_when_a_disk_that_failed_at_the_start_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.apps.batches.batches.OPEN_AGAIN", 0.01)
    store = SqliteBatchStore(tmp_path / "state")
    store.open()
    batch = begun(store, 3)
    store.close()
    sim = SimVllm("a", served=["m"])
    async with sim.serve() as url:
        with monkeypatch.context() as patch:
            patch.setattr(SqliteBatchStore, "unfinished", broken)
            patch.setattr(SqliteBatchStore, "_drop_strays", lambda _: None)
            server = f"server: {{data: '{tmp_path}/state'}}"
            routes = f"{server}\nbackends: {{a: {{url: '{url}'}}}}\naliases: {{chat: [a]}}"
            async with running_gateway(routes) as gateway:
                await gateway.until(lambda: gateway.metric("gateway_internal_failures_total", part="batches") > 0)
                patch.undo()
                async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
                    assert (await ended(client, batch.id)).status == "completed"
