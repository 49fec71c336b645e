"""When a file counts as edited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from gateway.config.edits import READ, Marks, _Watcher, edits, marks_of
from gateway.config.problems import Digests
from gateway.config.sources import look
from tests.support import PATIENCE, write


class Follower:
    """Reads the files whenever one was edited; `edits` counts how often."""

    def __init__(self, *files: Path) -> None:
        self.files = files
        self.known: Digests = look(files)
        self.edits = 0
        self.news = asyncio.Event()

    async def run(self) -> None:
        async with aclosing(edits(lambda: self.known)) as noticed:
            async for _ in noticed:
                self.known = look(self.files)
                self.edits += 1
                self.news.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.edits < count:
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def running(follower: Follower) -> AsyncIterator[None]:
    task = asyncio.create_task(follower.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def followed(follower: Follower, *steps: tuple[Path, str | None]) -> None:
    """Each step writes a file (None = deletes it), and has to be seen."""
    async with running(follower):
        for number, (file, text) in enumerate(steps, 1):
            write(file, text) if text is not None else file.unlink()
            await follower.until(number)


async def test_every_file_that_is_known_is_followed_also_one_that_is_not_there_yet(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write(first, "1")
    await followed(Follower(first, second), (first, "2"), (second, "1"), (first, None), (second, "2"), (first, "2"))


async def test_an_edit_that_leaves_size_and_times_as_they_were_is_found_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that counts in whole seconds."""
    monkeypatch.setattr("gateway.config.edits.marks_of", lambda files: [None for _ in files])
    file = tmp_path / "file"
    write(file, "1")
    await followed(Follower(file), (file, "2"), (file, "3"))


async def test_a_file_is_not_read_again_while_its_size_and_times_stay_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.config.edits.LOOK", 0.001)
    file = tmp_path / "file"
    write(file, "1")
    marks, reads = 0, 0
    counted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def count_marks(files: Iterable[Path]) -> Marks:
        nonlocal marks
        marks += 1
        if marks == 10 * READ:
            counted.get_loop().call_soon_threadsafe(counted.set_result, reads)
        return marks_of(files)

    def count_reads(files: Iterable[Path]) -> Digests:
        nonlocal reads
        reads += 1
        return look(files)

    monkeypatch.setattr("gateway.config.edits.marks_of", count_marks)
    monkeypatch.setattr("gateway.config.edits.look", count_reads)
    async with running(Follower(file)), asyncio.timeout(PATIENCE):
        assert await counted == 10, "the first look, and each eighth"


async def test_a_file_that_is_being_written_is_not_read_until_two_looks_find_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.config.edits.LOOK", 0.001)
    file = tmp_path / "file"
    write(file, "1")
    follower = Follower(file)
    parts = 0

    def write_on(files: Iterable[Path]) -> Digests:
        nonlocal parts
        parts += 1
        if parts <= 20:
            write(file, "2" * (parts + 1))
        return look(files)

    monkeypatch.setattr("gateway.config.edits.look", write_on)
    async with running(follower):
        await follower.until(1)
    assert parts > 20
    assert follower.edits == 1


async def test_a_write_of_the_same_content_is_no_edit(tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    write(file, "1")
    follower = Follower(file, other)
    async with running(follower):
        write(file, "1")
        write(tmp_path / "unknown", "1")
        write(other, "1")
        await follower.until(1)
    assert follower.edits == 1


async def test_what_is_edited_while_it_is_read_is_not_missed(tmp_path: Path) -> None:
    """Back and forth: what counts is what was read, not what was seen before."""
    file = tmp_path / "file"
    write(file, "1")
    known = look([file])
    read: list[Digests] = []
    async with asyncio.timeout(PATIENCE), aclosing(edits(lambda: known)) as noticed:
        write(file, "2")
        async for _ in noticed:
            known = look([file])
            read.append(known)
            if len(read) == 1:
                write(file, "1")  # as it was when the watch began
            else:
                break
    assert read[0] != read[1]


async def test_what_somebody_else_has_read_meanwhile_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    write(file, "1")
    follower = Follower(file)
    looks, enough, loop = 0, asyncio.Event(), asyncio.get_running_loop()

    def read_meanwhile(files: Iterable[Path]) -> Digests:
        nonlocal looks
        looks += 1
        if looks % 2:
            write(file, f"edited {looks}")  # the next look finds the same
        found = look(files)
        if not looks % 2:
            follower.known = found
        if looks == 6:
            loop.call_soon_threadsafe(enough.set)
        return found

    monkeypatch.setattr("gateway.config.edits.look", read_meanwhile)
    async with running(follower), asyncio.timeout(PATIENCE):
        await enough.wait()
    assert follower.edits == 0


async def test_a_watch_that_is_stopped_while_it_finds_an_edit_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads the files any more, and a gateway that stops waits for its watch."""
    monkeypatch.setattr("gateway.config.edits.LOOK", 0.001)
    file = tmp_path / "file"
    write(file, "1")
    known = look([file])
    watcher = _Watcher(lambda: known, asyncio.get_running_loop())
    looks = 0

    def stop_meanwhile(files: Iterable[Path]) -> Digests:
        nonlocal looks
        looks += 1
        if looks == 2:
            watcher.stop()
        return look(files)

    monkeypatch.setattr("gateway.config.edits.look", stop_meanwhile)
    write(file, "2")
    watcher.start()
    await asyncio.to_thread(watcher.join, PATIENCE)
    assert not watcher.is_alive()


def test_a_file_has_other_marks_after_an_edit_wherever_its_links_lead(tmp_path: Path) -> None:
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "file", folder)
    (tmp_path / "present").symlink_to("old")
    (tmp_path / "link").symlink_to("present/file")
    (tmp_path / "circle").symlink_to("circle")
    files = [tmp_path / "link", tmp_path / "circle", tmp_path / "no" / "file", Path("\0")]
    before = marks_of(files)
    assert before == marks_of(files)
    assert before[1:] == [None, None, None]
    (tmp_path / "other").symlink_to("new")
    (tmp_path / "other").rename(tmp_path / "present")
    assert marks_of(files)[0] != before[0]


def test_a_pipe_is_not_looked_at_again() -> None:
    from gateway.config.sources import Sources

    read, written = os.pipe()
    os.write(written, b"said once")
    os.close(written)
    sources = Sources()
    assert sources.read(Path(f"/dev/fd/{read}")) == b"said once"
    os.close(read)
    assert sources == {}
