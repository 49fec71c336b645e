"""`gateway backup`: what is in the file, whoever writes meanwhile, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import stat
import subprocess
import sys
import tarfile
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.accounting.ledger_file import NAME, LedgerFile, sums_since
from gateway.apps.backup import archive
from gateway.cli.main import cli
from simulator import SimVllm
from tests.apps.batches.filed import ended, line, results
from tests.apps.batches.test_batches import ROUTES as BATCH_ROUTES
from tests.apps.batches.test_batches import asked, begin, sdk
from tests.apps.console.test_usage import used
from tests.gateway_process import gateway_process
from tests.waiting import until

ROUTES = "server: {{data: '{data}'}}\nbackends: {{a: {{url: 'http://127.0.0.1:9'}}}}\n"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`server.data` of the routes.yaml in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GATEWAY_CONFIG", raising=False)
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "routes.yaml").write_text(ROUTES.format(data=folder))
    return folder


def backup(*words: str) -> Result:
    return CliRunner().invoke(cli, ["backup", *words])


def restored(file: str, folder: Path) -> Path:
    folder.mkdir()
    with tarfile.open(file) as found:
        found.extractall(folder, filter="data")
    return folder


def requests(folder: Path) -> int:
    return sums_since(folder / NAME, 0.0, ("client",))[0].requests


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def test_everything_comes_back_and_what_is_of_the_moment_is_left_out(data: Path, tmp_path: Path) -> None:
    ledger = LedgerFile(data / NAME)
    ledger.write([used("hermes", "qwen36")] * 3)
    ledger.close()
    (data / "mode.json").write_text('{"mode": "daily"}')
    (data / "files").mkdir()
    (data / "files" / "file-1").write_bytes(b"{}\n" * 1000)
    (data / "files" / "file-2.part").write_bytes(b"half")
    (data / "batches.lock").touch()
    (data / "elsewhere").symlink_to("/etc/hostname")
    before = everything(data)
    done = backup("b.tar.gz", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["databases"] == [NAME]
    assert everything(data) == before, "nothing changes in the data directory"
    found = restored("b.tar.gz", tmp_path / "new")
    names = {str(path.relative_to(found)) for path in found.rglob("*") if path.is_file()}
    assert names == {NAME, "mode.json", "files/file-1"}
    assert (found / "files/file-1").read_bytes() == b"{}\n" * 1000
    assert requests(found) == 3


def test_a_ledger_that_is_written_meanwhile_is_whole(data: Path, tmp_path: Path) -> None:
    """Each transaction has a hundred rows: a copy has all of it, or nothing."""
    stop, begun = threading.Event(), threading.Event()

    def write() -> None:
        ledger = LedgerFile(data / NAME)
        while not stop.is_set():
            ledger.write([used("hermes", "qwen36")] * 100)
            begun.set()
        ledger.close()

    writer = threading.Thread(target=write)
    writer.start()
    assert begun.wait(30)
    try:
        for n in range(5):
            assert backup(f"b{n}.tar.gz").exit_code == 0
    finally:
        stop.set()
        writer.join()
    counts = [requests(restored(f"b{n}.tar.gz", tmp_path / f"new{n}")) for n in range(5)]
    assert counts == sorted(counts)
    assert all(count > 0 and count % 100 == 0 for count in counts)


def test_what_a_killed_gateway_left_in_its_journal_is_in_it(data: Path, tmp_path: Path) -> None:
    ledger = LedgerFile(tmp_path / NAME)
    ledger.write([used("hermes", "qwen36")] * 3)
    for path in tmp_path.glob(f"{NAME}*"):  # as it lies on the disk: the rows are in the journal alone
        if not path.name.endswith("-shm"):
            shutil.copy(path, data)
    ledger.close()
    before = everything(data)
    assert f"{NAME}-wal" in before
    assert backup("b.tar.gz").exit_code == 0
    assert everything(data) == before
    assert requests(restored("b.tar.gz", tmp_path / "new")) == 3


def test_only_its_owner_may_read_the_file(data: Path) -> None:
    (data / "mode.json").write_text("{}")
    assert backup("b.tar.gz").exit_code == 0
    assert stat.S_IMODE(Path("b.tar.gz").stat().st_mode) == 0o600


def test_a_damaged_database_is_told_and_copied_as_it_lies_there(data: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(data / "usage.db")) as db:
        db.execute("CREATE TABLE t (x)")
        db.executemany("INSERT INTO t VALUES (?)", [("x" * 500,)] * 200)
        db.commit()
    broken = bytearray((data / "usage.db").read_bytes())
    broken[4096 : 4096 * 3] = b"\xff" * 8192
    (data / "usage.db").write_bytes(broken)
    done = backup("b.tar.gz")
    assert done.exit_code == 1
    assert "usage.db is damaged and was copied as it lies there" in done.output
    assert (restored("b.tar.gz", tmp_path / "new") / "usage.db").read_bytes() == broken


def test_what_is_refused_and_that_nothing_is_left_of_a_failure(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("old.tar.gz").write_bytes(b"kept")
    refused = backup("old.tar.gz")
    assert (refused.exit_code, Path("old.tar.gz").read_bytes()) == (2, b"kept")
    assert backup("data/b.tar.gz").exit_code == 2
    (data / "mode.json").write_text("{}")

    def full(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    before = {path.name for path in tmp_path.iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(archive, "_add", full)
        done = backup("b.tar.gz")
    assert (done.exit_code, "No space left on device" in done.output) == (1, True)
    assert {path.name for path in tmp_path.iterdir()} == before
    shutil.rmtree(data)
    gone = backup("b.tar.gz")
    assert (gone.exit_code, "there is no directory" in gone.output) == (1, True)


async def test_a_batch_under_way_goes_on_from_the_backup(tmp_path: Path) -> None:
    """The gateway runs and answers lines while it is copied; another one ends the batch from the copy."""
    sim = SimVllm("a", served=["m"], decode=200.0)
    names = [f"r{n}" for n in range(40)]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with sim.serve() as url:
        routes = BATCH_ROUTES.format(data=tmp_path / "one" / "state", url=url, slots=1)
        async with gateway_process(tmp_path / "one", routes) as one, sdk(one.url) as at_one:
            batch = await begin(at_one, [line(name, f"{name}: 3 words please") for name in names])
            await until(lambda: len(asked(sim)) > 5)
            command = [sys.executable, "-m", "gateway", "backup", str(tmp_path / "b.tar.gz")]
            run = partial(subprocess.run, command, cwd=tmp_path / "one", capture_output=True, text=True, timeout=60)
            done = await asyncio.to_thread(run)
            assert done.returncode == 0, done.stderr
        restored(str(tmp_path / "b.tar.gz"), tmp_path / "two" / "state")
        routes = BATCH_ROUTES.format(data=tmp_path / "two" / "state", url=url, slots=4)
        async with gateway_process(tmp_path / "two", routes) as two, sdk(two.url) as at_two:
            output, errors = await results(at_two, await ended(at_two, batch.id))
    assert (list(output), errors) == (names, {})
