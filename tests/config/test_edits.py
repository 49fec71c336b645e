"""When a file counts as edited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Iterable
from contextlib import aclosing
from pathlib import Path

import pytest

import gateway.config.edits as edits_module
from gateway.config.edits import Places, edits, places
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


async def followed(follower: Follower, *steps: tuple[Path, str | None]) -> None:
    """Each step writes a file (None = deletes it), and has to be seen."""
    task = asyncio.create_task(follower.run())
    try:
        for number, (file, text) in enumerate(steps, 1):
            write(file, text) if text is not None else file.unlink()
            await follower.until(number)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_every_file_that_is_known_is_followed_also_one_that_is_not_there_yet(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write(first, "1")
    await followed(Follower(first, second), (first, "2"), (second, "1"), (first, None), (second, "2"), (first, "2"))


async def test_where_no_file_system_tells_of_edits_they_are_found_by_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Generator[None, None, None]:
        raise OSError("no watches left")
        yield

    monkeypatch.setattr("gateway.config.edits.watch", broken)
    file = tmp_path / "file"
    write(file, "1")
    await followed(Follower(file), (file, "2"), (file, "3"))


async def test_a_write_of_the_same_content_is_no_edit(tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    write(file, "1")
    follower = Follower(file, other)
    task = asyncio.create_task(follower.run())
    write(file, "1")
    write(tmp_path / "unknown", "1")
    write(other, "1")
    await follower.until(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
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
    survey = edits_module._survey
    looks, enough, loop = 0, asyncio.Event(), asyncio.get_running_loop()

    def read_meanwhile(files: Iterable[Path]) -> tuple[Digests, Places]:
        nonlocal looks
        looks += 1
        if looks <= 3:
            write(file, f"edited {looks}")
        found = survey(files)
        follower.known = look([file])
        if looks == 5:
            loop.call_soon_threadsafe(enough.set)
        return found

    monkeypatch.setattr(edits_module, "_survey", read_meanwhile)
    task = asyncio.create_task(follower.run())
    async with asyncio.timeout(PATIENCE):
        await enough.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert follower.edits == 0


def test_the_places_that_are_watched_are_those_where_an_edit_leaves_a_trace(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    write(tmp_path / "real" / "file", "1")
    link = tmp_path / "link"
    link.symlink_to("real/file")
    (tmp_path / "circle").symlink_to("circle")
    assert set(places([link])) == {link, tmp_path, tmp_path / "real"}
    assert set(places([tmp_path / "circle", tmp_path / "no" / "file"])) == {tmp_path}


def test_a_pipe_is_not_looked_at_again() -> None:
    from gateway.config.sources import Sources

    read, written = os.pipe()
    os.write(written, b"said once")
    os.close(written)
    sources = Sources()
    assert sources.read(Path(f"/dev/fd/{read}")) == b"said once"
    os.close(read)
    assert sources == {}
