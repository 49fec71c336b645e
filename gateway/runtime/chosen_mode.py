"""The mode that was chosen last. It is kept in `server.data` across restarts, with the time of the choice: of the
choices of several gateways the latest counts."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import msgspec

from gateway.config.modes import mode_of, renamed
from gateway.config.snapshot import Snapshot
from gateway.config.sources import keep, read_kept

log = logging.getLogger("gateway")

NAME = "mode.json"


class ModeChoice(msgspec.Struct, frozen=True):
    """`mode`: the name of a mode. `at`: when it was chosen, in Unix milliseconds."""

    mode: str
    at: float


class ChosenMode:
    """`choice` None = nobody has chosen a mode: the first one of routes.yaml is in force."""

    def __init__(self, folder: Path) -> None:
        self.choice: ModeChoice | None = None
        self._folder = folder

    @property
    def name(self) -> str | None:
        return None if self.choice is None else self.choice.mode

    async def open(self) -> None:
        """Read the choice from before the start. A file that cannot be read counts as no choice, with a warning."""
        if self.choice is not None:
            return
        file, first = self._folder / NAME, "the first mode of routes.yaml is in force"
        choice = await asyncio.to_thread(read_kept, file, ModeChoice, log, first)
        if choice is not None and not (choice.mode and choice.at >= 0):
            log.warning("%s is not valid: %s", file, first)
            choice = None
        self.choice = choice

    async def choose(self, name: str) -> ModeChoice:
        """Choose a mode, and keep the choice."""
        latest = 0.0 if self.choice is None else self.choice.at
        choice = ModeChoice(name, max(float(round(time.time() * 1000)), latest + 1))  # the clock may have been set back
        await self._keep(choice)
        return choice

    def adopt(self, choice: ModeChoice) -> bool:
        """Take over the choice of another gateway, if it is later than the present one. `save` keeps it."""
        if self.choice is not None and self.choice.at >= choice.at:
            return False
        self.choice = choice
        return True

    async def follow_edit(self, before: Snapshot, after: Snapshot) -> None:
        """Follow an edit of routes.yaml that renames the chosen mode. Only the name changes: the choice is not later
        for that."""
        if self.choice is not None and (name := renamed(before, after, self.choice.mode)) != self.choice.mode:
            await self._keep(ModeChoice(name, self.choice.at))

    async def save(self) -> None:
        if self.choice is not None:
            await asyncio.to_thread(keep, self._folder / NAME, self.choice, log)

    async def _keep(self, choice: ModeChoice) -> None:
        self.choice = choice
        await self.save()

    def missing_in(self, snapshot: Snapshot) -> str | None:
        """For people: that routes.yaml has modes, but not the chosen one, and which one is in force instead; None
        otherwise."""
        first = mode_of(snapshot, None)
        if self.choice is None or first is None or self.choice.mode in snapshot.modes:
            return None
        return f"{snapshot.source} has no mode '{self.choice.mode}': the first one, '{first.name}', is in force"
