"""This gateway among the others in front of the same fleet: it joins them, tells every few seconds that it is there,
and goes on alone while Redis is away."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.accounting.accounts import Accounts, today
from gateway.admission.scheduler import Scheduler
from gateway.cluster.identity import Memory, recall, remember
from gateway.cluster.redis_connection import CONNECT, Away, Batch, Link
from gateway.cluster.shared_budgets import Purse, days
from gateway.cluster.shared_slots import SharedSlots
from gateway.cluster.state_sync import Board
from gateway.config.snapshot import Secret
from gateway.domain.events import Event
from gateway.domain.fleet import Fleet
from gateway.health.prober import Prober
from gateway.supervision import Failures

log = logging.getLogger("gateway.cluster")

RENEW = 2.0  # seconds between two renewals; a gateway counts as gone after link.PRESENT
RETRY = 0.25  # seconds until Redis is tried again
SETTLED = 5.0  # seconds after joining in which others may still be on their way back


class Gateways:
    """`joined`: Redis is there, and what is shared is decided together."""

    def __init__(
        self,
        url: Secret,
        folder: Path,
        fleet: Fleet,
        scheduler: Scheduler,
        accounts: Accounts,
        prober: Prober,
        emit: Callable[[Event], None],
        failures: Failures | None = None,
    ) -> None:
        self._failures = failures or Failures()
        self.id = uuid.uuid4().hex[:12]  # of this process
        self.since = time.time()  # when it joined, or went on alone
        self.reason = "not joined yet"
        self.times_away = 0
        self._folder = folder
        self._fleet = fleet
        self._accounts = accounts
        self._emit = emit
        self._memory = Memory("")
        self._link = Link(url, self.id, self._build, self._heard, self._lost, self._failures)
        self.slots = SharedSlots(self.id, scheduler, accounts.limits, lambda: fleet.states, self._link.wake)
        self._board = Board(lambda: fleet.states, prober, self._link.wake)
        self._purse: Purse | None = None
        self._renew = self._news = False
        self._nudge = asyncio.Event()
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        scheduler.others = self.slots
        fleet.observers.news.append(self._board.on_news)

    @property
    def joined(self) -> bool:
        return self.slots.joined

    @property
    def gateways(self) -> int:
        """How many there are, or were when last seen; this one included."""
        return self._memory.gateways

    @property
    def trips(self) -> int:
        """Round trips to Redis."""
        return self._link.trips

    # -- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Join, or go on alone for now: waits for neither longer than a moment. After the ledger was read."""
        self._memory = await asyncio.to_thread(recall, self._folder)
        await asyncio.to_thread(remember, self._folder, self._memory)
        self._purse = Purse(self._accounts.budgets, self._memory.owner, self._link.wake)
        self._accounts.budgets.on_change = self._purse.changed
        self._task = self._failures.task("shared", self._run)
        try:
            async with asyncio.timeout(2 * CONNECT):
                await self._tried.wait()
        except TimeoutError:
            log.warning("redis at %s is not there yet", self._link.where)

    async def close(self) -> None:
        """Leave the others: what was held here is free for them at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._link.up:
            await self._link.say_last(("leave",))
        self.slots.joined = False
        await self._link.close()

    async def _run(self) -> None:
        while True:
            try:
                await self._link.open()
                await self._keep()
            except Away as error:
                self._lost(str(error))
            except Exception:
                self._failures.note("shared", "what gateways share")
                self._lost("an error inside the gateway; see its log")
            await self._link.close()
            self.slots.tick(time.monotonic())
            await asyncio.sleep(RETRY)

    async def _keep(self) -> None:
        """Join, and renew that now and then, as long as Redis is there."""
        while self._link.up:
            self._renew = True
            self._nudge.clear()
            self._link.wake()
            try:
                async with asyncio.timeout(RENEW):
                    await self._nudge.wait()
            except TimeoutError:
                continue

    # -- out ------------------------------------------------------------------------------------------------------

    def _build(self) -> Batch:
        """What is to be sent now. First of all that we are there."""
        if not self.joined:
            return self._joining() if self._renew else []
        batch: Batch = []
        if self._renew:
            self._renew, self._news = False, True
            batch.append((self.slots.renewal(0), self._renewed))
            batch.append((("purse", days(today())[-2:]), self._read_purse))
        if self._news:
            self._news = False
            batch.append((("news", self._board.revision), self._read_news))
        batch += self.slots.take()
        batch += [(operation, _ignore) for operation in self._board.take()]
        if self._purse is not None:
            batch += [(operation, _ignore) for operation in self._purse.take()]
        return batch

    def _joining(self) -> Batch:
        assert self._purse is not None
        self._renew = False
        self._board.say_all()
        purse = self._purse
        claims: Batch = [(op, lambda answer: purse.claimed(answer[0], self.id)) for op in purse.claim(today())]
        return [
            (self.slots.renewal(self.gateways), self._renewed),
            *claims,
            (("purse", days(today())), self._read_purse),
            (("news", 0), self._read_news),
            *((operation, _ignore) for operation in self._board.take()),
            (("news", 0), self._joined),
        ]

    # -- in -------------------------------------------------------------------------------------------------------

    def _renewed(self, answer: list[Any]) -> None:
        present, loads, granted = answer
        self.slots.renewed(loads, granted)
        if present > self.gateways or (self.joined and time.time() - self.since > SETTLED):
            self._count(present)

    def _count(self, present: int) -> None:
        if present != self.gateways:
            self._memory.gateways = present
            log.info("%d gateways share the fleet", present)
            # Not waited for: a thread of its own writes a hundred bytes.
            asyncio.get_running_loop().run_in_executor(None, remember, self._folder, self._memory)

    def _joined(self, _: Any) -> None:
        assert self._purse is not None
        self._purse.tell_all()
        self._fleet.sharers = 1
        self.slots.join()
        self._renew = True  # what came and went while the answer was on its way
        self._change(f"joined the gateways at redis {self._link.where}")
        log.info("%s: %d of them", self.reason, self.gateways)
        self._tried.set()

    def _read_news(self, answer: list[Any]) -> None:
        self._board.hear(*answer)

    def _read_purse(self, answer: list[Any]) -> None:
        assert self._purse is not None
        self._purse.read(answer[0], answer[1], self.id)

    def _heard(self, message: list[Any]) -> None:
        """A message of another gateway; or of Redis, that one of ours who waits has got slots."""
        kind = message[0]
        if kind == "granted":
            self.slots.granted(*message[1:])
        elif kind == "held":
            self.slots.held(message[2])
        elif message[1] == self.id or self._purse is None:
            return
        elif kind == "news":
            self._news = True
            self._link.wake()
        elif kind == "spend":
            self._purse.heard(*message[1:])
        elif kind == "merged":
            self._purse.merged(message[2])
        if kind in ("came", "gone") and self.joined:  # how many there are, and what is under way, is known at once
            self._renew = True
            self._link.wake()

    def _lost(self, reason: str) -> None:
        """Redis is away. Everybody who waits is served here from now on."""
        self._nudge.set()
        self._tried.set()
        if self.joined or not self.times_away:
            self.times_away += 1
            self._fleet.sharers = self.gateways
            self.slots.part(self.gateways)
            share = f"with a share of the slots (1 of {self.gateways} gateways)"
            self._change(f"redis {self._link.where} is away ({reason}): goes on alone, {share}")
            log.warning("%s", self.reason)

    def _change(self, reason: str) -> None:
        self.reason, self.since = reason, time.time()
        self._emit(Event(self.since, "shared", "", reason))

    # -- shown ----------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """For `/status`. `since` in Unix seconds; `away`: how often Redis was."""
        return {
            "joined": self.joined,
            "gateways": self.gateways,
            "redis": self._link.where,
            "since": self.since,
            "reason": self.reason,
            "away": self.times_away,
            "trips": self.trips,
        }


def _ignore(_: Any) -> None:
    """Nothing is told but that it is done."""
