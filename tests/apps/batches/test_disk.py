"""Batches on a disk that is full, or that has lost a file."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from gateway import shortage
from gateway.apps.batches import store as store_module
from gateway.apps.batches.records import BatchRecord
from gateway.apps.batches.runner import now
from gateway.apps.batches.sqlite_store import SqliteBatchStore
from gateway.shortage import OwnShortage
from simulator import SimVllm
from tests.apps.batches.filed import Filed, ended, filed, jsonl, last, line
from tests.apps.batches.test_file_folder import BODY, FORM
from tests.apps.batches.test_sqlite_store import begun
from tests.support import running_gateway
from tests.waiting import until, until_said


@contextmanager
def pauses(seconds: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "FULL", seconds)
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


@contextmanager
def disk_with(room: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Bytes that files and batches may still take here. Gives how many that are by now."""
    free = shortage.FREE_LEAST + room

    def left(_: object) -> Any:
        used = sum(path.stat().st_size for path in Path(taken[0]).rglob("*") if path.is_file())
        return SimpleNamespace(f_bavail=free - used, f_frsize=1)

    taken: list[Path] = []

    def of(place: Any) -> Any:
        if isinstance(place, Path) and not taken:
            taken.append(place)
        return left(place) if taken else SimpleNamespace(f_bavail=free, f_frsize=1)

    with monkeypatch.context() as patch:
        patch.setattr("gateway.shortage.os.statvfs", of)
        yield lambda: int(left(None).f_bavail) - shortage.FREE_LEAST


async def test_results_leave_the_disk_its_room_and_the_batch_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pauses(0.02, monkeypatch):
        async with filed(SimVllm("a", served=["m"]), slots=2) as f:
            names = [f"r{n}" for n in range(100)]
            lines = jsonl([line(name, f"{name}: 1000 words please") for name in names])
            with disk_with(700_000, monkeypatch) as left:
                batch = await f.begin(lines)
                await f.gateway.until(lambda: f.gateway.metric("gateway_shortages_total", kind="disk") > 3)

                async def waits_for_the_disk() -> bool:
                    """Between two tries it waits for its lines."""
                    shown = await f.client.batches.retrieve(batch.id)
                    assert (shown.status, left() > -50_000) == ("in_progress", True)
                    status = (await f.gateway.client.get("/status")).json()
                    told = [str(error.message) for error in (shown.errors.data or [])] if shown.errors else []
                    shown_there = str(status["batches"][0]["waits"])
                    return status["short"] == ["disk"] and "disk" in str(told) and "disk" in shown_there

                await until_said(waits_for_the_disk)
                upload = await f.gateway.client.post(
                    "/v1/files", content=BODY.replace(b"{}", b"x" * 200_000), headers=FORM
                )
                assert (upload.status_code, upload.headers["retry-after"].isdigit()) == (503, True)
                asked = len(f.asked())
                assert asked < len(names)
            done = await f.ended(batch)
            assert list((await f.results(done))[0]) == names
            assert set(Counter(f.asked()).values()) == {1}
            rows = (await f.gateway.client.get("/status")).json()["batches"]
            assert rows[0]["waits"] is None


def test_output_files_leave_the_disk_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteBatchStore(tmp_path)
    store.open()
    last(store.index(begun(store, 8), 1000, 10**9, now()))
    for number in range(8):
        store.add_result("batch_x", number, b"x" * 100_000, ok=True)
    record = store.move("batch_x", ("in_progress",), "finalizing", now())
    with monkeypatch.context() as patch:
        patch.setattr(shortage, "FREE_LEAST", 10**18)
        with pytest.raises(OwnShortage):
            last(store.finalize(record, now()))
    assert [path.name for path in store.folder.iterdir()] == ["file-in"]  # no part of an output
    assert last(store.finalize(record, now())).status == "completed"
    store.close()


def test_validation_leaves_the_disk_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteBatchStore(tmp_path)
    store.open()
    record = begun(store, 8)
    with monkeypatch.context() as patch:
        patch.setattr(shortage, "FREE_LEAST", 10**18)
        with pytest.raises(OwnShortage):
            last(store.index(record, 1000, 10**9, now()))
    assert last(store.index(record, 1000, 10**9, now())).total == 8
    store.close()
