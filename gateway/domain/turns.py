"""Turns: how many things each sender may have under way at a time, whatever the others have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """`each`: how many turns a sender has at a time. Its others wait in order; nobody waits for another sender."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._senders: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}  # (turns, one None for each that uses them)

    def __len__(self) -> int:
        """Senders that have turns, or wait for one."""
        return len(self._senders)

    @asynccontextmanager
    async def turn(self, sender: str) -> AsyncIterator[None]:
        turns, users = self._senders.setdefault(sender, (asyncio.Semaphore(self._each), []))
        users.append(None)
        try:
            async with turns:
                yield
        finally:
            users.pop()
            if not users:
                del self._senders[sender]
