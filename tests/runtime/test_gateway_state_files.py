"""Files of `server.data` that cannot be used: the gateway starts and serves, says which file it is, and leaves it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from simulator import SimVllm
from tests.raw_client import chat
from tests.support import running_gateway

NAMES = ("batches.db", "responses.db", "usage.db")


def garbage(file: Path) -> None:
    file.write_bytes(b"not a database, but long enough to be looked at as one. " * 100)


def folder(file: Path) -> None:
    file.mkdir()


def of_a_newer_gateway(file: Path) -> None:
    with closing(sqlite3.connect(file)) as base:
        base.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spoil", [garbage, folder, of_a_newer_gateway])
async def test_a_file_that_cannot_be_used_keeps_no_gateway_from_serving(
    tmp_path: Path, name: str, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    spoil(tmp_path / name)
    sim = SimVllm("a")
    async with sim.serve() as url:
        routes = f"server: {{data: '{tmp_path}', keep_responses: 1h}}\nbackends: {{a: {{url: '{url}'}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            assert (await gateway.client.post("/v1/chat/completions", json=chat("a"))).status_code == 200
            kept = await gateway.client.post("/v1/responses", json={"model": "a", "input": "hi"})
            assert kept.status_code == 200
            read = await gateway.client.get(f"/v1/responses/{kept.json()['id']}")
            files = await gateway.client.get("/v1/files")
        assert read.status_code == (503 if name == "responses.db" else 200)
        assert files.status_code == (503 if name == "batches.db" else 200)
    said = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert any(name in one for one in said)
    if spoil is garbage:
        assert (tmp_path / name).read_bytes().startswith(b"not a database")
    if spoil is of_a_newer_gateway:
        with closing(sqlite3.connect(tmp_path / name)) as base:
            assert base.execute("PRAGMA user_version").fetchone() == (99,)
        assert any("was written by a newer gateway (format 99, this one knows 1)" in one for one in said)
