"""How one command is run."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from gateway.apps.control.command import OUTPUT_MOST, CommandOutcome, run
from tests import waiting


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ("echo done", CommandOutcome("", "done")),
        ("echo out; echo wrong >&2; exit 3", CommandOutcome("exit code 3", "out\nwrong")),
        ("kill -9 $$", CommandOutcome("ended by signal 9", "")),
        ("cat", CommandOutcome("", "")),  # it has no input
        ("printf 'a\\033[31m\\nb'", CommandOutcome("", "a\\x1b[31m\nb")),
    ],
)
async def test_how_it_ended_and_what_it_wrote(script: str, ended: CommandOutcome) -> None:
    assert await run(("sh", "-c", script), 20.0) == ended


async def test_the_last_part_of_a_long_output_is_kept() -> None:
    ended = await run(("sh", "-c", "yes | head -c 300000; echo; echo end"), 20.0)
    assert ended.problem == ""
    assert ended.output.endswith("end")
    assert len(ended.output) <= OUTPUT_MOST


async def test_no_shell_reads_the_words() -> None:
    assert (await run(("echo", "$HOME; true"), 20.0)).output == "$HOME; true"


async def test_what_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    script = f"sleep 1000 & echo $! > {tmp_path}/pid; wait"
    assert (await run(("sh", "-c", script), 0.5)).problem == "did not end within 0.5 s"
    await waiting.until(lambda: not is_alive(int((tmp_path / "pid").read_text())))


async def test_a_cancelled_caller_kills_it(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 1000"
    running = asyncio.create_task(run(("sh", "-c", script), 100.0))
    await waiting.until((tmp_path / "pid").exists)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    assert not is_alive(int((tmp_path / "pid").read_text()))


async def test_what_it_leaves_in_the_background_is_not_waited_for(tmp_path: Path) -> None:
    ended = await run(("sh", "-c", f"sleep 1000 & echo $! > {tmp_path}/pid; echo started"), 20.0)
    assert ended == CommandOutcome("", "started")
    os.kill(int((tmp_path / "pid").read_text()), 9)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_gateway_without_open_files_says_so_and_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def used_up() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pipe", used_up)
    ended = await run(("echo", "a"), 20.0)
    assert ended.problem.startswith("echo cannot be run: the gateway itself is short of open files")
