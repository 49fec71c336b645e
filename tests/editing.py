"""Edits of a running gateway's routes.yaml, and what comes of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gateway.domain.events import Event
from simulator import SimVllm
from tests.support import PATIENCE, RunningGateway, running_gateway, write


@dataclass
class Editor:
    """`results` are the config events so far; `sims` the simulated backends by name."""

    gateway: RunningGateway
    file: Path
    sims: dict[str, SimVllm] = field(default_factory=dict)
    results: list[Event] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def text(self) -> str:
        """What is in the file."""
        return self.file.read_text()

    def note(self, event: Event) -> None:
        if event.kind == "config":
            self.results.append(event)
            self._news.set()

    async def until(self, number: int) -> Event:
        """The config event of this number, from 1."""
        async with asyncio.timeout(PATIENCE):
            while len(self.results) < number:
                self._news.clear()
                await self._news.wait()
        return self.results[number - 1]

    async def save(self, text: str) -> Event:
        """Write the file in place, and wait for what comes of it."""
        before = len(self.results)
        write(self.file, text)
        return await self.until(before + 1)

    async def until_in_force(self, text: str) -> None:
        """Write the file, and wait until this version counts, whatever was under way."""
        write(self.file, text)
        reloader = self.gateway.gateway.reloader
        assert reloader is not None
        await reloader.reload()

    async def edit(self, old: str, new: str) -> Event:
        """Replace a part of the file."""
        assert old in self.text, "not in the file"
        return await self.save(self.text.replace(old, new))

    async def timed(self, text: str) -> float:
        """Seconds from the write to the event."""
        began = time.monotonic()
        result = await self.save(text)
        assert result.after == "taken"
        return time.monotonic() - began


@asynccontextmanager
async def edited(gateway: RunningGateway, file: Path, sims: dict[str, SimVllm] | None = None) -> AsyncIterator[Editor]:
    editor = Editor(gateway, file, sims or {})
    gateway.gateway.on_event.append(editor.note)
    yield editor


@asynccontextmanager
async def editor_of(file: Path, names: str, more: str = "", head: str = "") -> AsyncIterator[Editor]:
    """A gateway in front of simulated backends of these names, one line of the file each; `more` follows. `{a}` in it
    is the URL of backend a. Backends named after a `+` run, and are not in the file."""
    async with AsyncExitStack() as stack:
        sims = {name.lstrip("+"): SimVllm(name.lstrip("+"), decode=2000) for name in names.split()}
        urls = {name: await stack.enter_async_context(sim.serve()) for name, sim in sims.items()}
        written = [name for name in names.split() if not name.startswith("+")]
        routes = "".join(f"  {name}: {{url: '{urls[name]}', slots: 4}}\n" for name in written)
        for name, url in urls.items():
            more = more.replace("{" + name + "}", url)
        gateway = await stack.enter_async_context(running_gateway(f"{head}backends:\n{routes}{more}", file=file))
        await gateway.until_ready(*written)
        yield await stack.enter_async_context(edited(gateway, file, sims))
