"""Membership of this gateway in the cluster: it joins, renews its presence every few seconds, and serves alone while
Redis is away."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from pathlib import Path
from socket import gethostname
from typing import Any

import msgspec

from gateway.accounting.accounts import today
from gateway.apps.cluster.redis_connection import CONNECT, Batch, RedisConnection, RedisUnavailable, ignore
from gateway.apps.cluster.shared_budgets import SharedBudgets, days
from gateway.apps.cluster.shared_operations import SharedOperations
from gateway.apps.cluster.shared_slots import SharedSlots
from gateway.apps.cluster.state_sync import SharedPlacements, StateSync
from gateway.config.snapshot import Secret
from gateway.config.sources import keep, read_kept
from gateway.domain.events import Event
from gateway.runtime.gateway import Gateway
from gateway.supervision import cancel

log = logging.getLogger("gateway.cluster")

RENEW = 2.0  # seconds between two renewals; a gateway counts as gone after redis_connection.PRESENT
RETRY = 0.25  # seconds until Redis is tried again
SETTLED = 5.0  # seconds after joining in which other gateways may still be reconnecting
NAME = "shared.json"
GATEWAYS_MOST = 1000
_OWNER = re.compile(r"[\w.-]{1,128}")


class Membership:
    """`joined`: Redis answers, and slots, limits and budgets are decided together."""

    def __init__(self, gateway: Gateway, url: Secret) -> None:
        fleet, scheduler, accounts = gateway.fleet, gateway.admission.scheduler, gateway.accounts
        server = gateway.snapshot.server
        self._failures = gateway.metrics.failures
        self.id = uuid.uuid4().hex[:12]  # of this process
        self.since = time.time()  # when this gateway joined, or began to serve alone
        self.reason = "not joined yet"
        self.times_away = 0
        self._folder = Path(server.data)
        self._fleet = fleet
        self._accounts = accounts
        self._emit = gateway.emit
        self._identity = GatewayIdentity("")
        self._redis = RedisConnection(url, self.id, self._build, self._on_message, self._on_redis_lost, self._failures)
        wake = self._redis.wake
        self.slots = SharedSlots(self.id, scheduler, accounts.limits, lambda: fleet.states, wake)
        self._state_sync = StateSync(lambda: fleet.states, gateway.prober, wake)
        self._state_sync.on_mode = gateway.chosen_elsewhere
        name = f"{gethostname()}:{server.port}"  # for people
        self.operations = SharedOperations(name, self.id, self._state_sync, lambda: self.joined, wake, self._failures)
        self._placements = SharedPlacements(gateway.services.placements, lambda: fleet.states)
        self._shared_budgets: SharedBudgets | None = None
        self._renew = self._news = False
        self._nudge = asyncio.Event()
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        scheduler.sharing = self.slots
        fleet.observers.news.append(self._state_sync.on_news)

    @property
    def joined(self) -> bool:
        return self.slots.joined

    @property
    def gateways(self) -> int:
        """Gateways in the cluster when last counted, this one included."""
        return self._identity.gateways

    @property
    def trips(self) -> int:
        """Round trips to Redis."""
        return self._redis.trips

    def publish_mode(self, mode: str, at: float) -> None:
        """The mode was chosen here at `at` (Unix ms)."""
        self._state_sync.publish_mode(mode, at)

    # -- start and stop -------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Join, or serve alone for now; either takes at most 2 s. Called after the ledger was read."""
        self._identity = await asyncio.to_thread(load_identity, self._folder)
        await asyncio.to_thread(save_identity, self._folder, self._identity)
        self._shared_budgets = SharedBudgets(self._accounts.budgets, self._identity.owner, self._redis.wake)
        self._accounts.budgets.on_change = self._shared_budgets.changed
        self._task = self._failures.task("shared", self._run)
        try:
            async with asyncio.timeout(2 * CONNECT):
                await self._tried.wait()
        except TimeoutError:
            log.warning("redis at %s is not there yet", self._redis.where)

    async def close(self) -> None:
        """Leave the cluster: slots that were held here are free for the others at once."""
        await cancel(self._task)
        if self._redis.up:
            await self._redis.send_last(("leave",))
        self.slots.joined = False
        await self._redis.close()

    async def _run(self) -> None:
        while True:
            try:
                await self._redis.open()
                await self._stay_joined()
            except RedisUnavailable as error:
                self._on_redis_lost(str(error))
            except Exception:
                self._failures.note("shared", "what gateways share")
                self._on_redis_lost("an error inside the gateway; see its log")
            await self._redis.close()
            self.slots.tick(time.monotonic())
            await asyncio.sleep(RETRY)

    async def _stay_joined(self) -> None:
        """Join, then renew the presence as long as Redis answers."""
        while self._redis.up:
            self._renew = True
            self._nudge.clear()
            self._redis.wake()
            try:
                async with asyncio.timeout(RENEW):
                    await self._nudge.wait()
            except TimeoutError:
                continue

    # -- operations to send ---------------------------------------------------------------------------------------

    def _build(self) -> Batch:
        """The operations to send now. The first one renews the presence."""
        if not self.joined:
            return self._joining() if self._renew else []
        batch: Batch = []
        look = self.operations.look() if self._renew else []
        if self._renew:
            self._renew, self._news = False, True
            batch.append((self.slots.renewal(0), self._renewed))
            batch.append((("read_spending", days(today())[-2:]), self._read_spending))
        if self._news:
            self._news = False
            batch.append((("news", self._state_sync.revision), self._read_news))
        batch += look
        batch += self.slots.pending_operations()
        batch += [(operation, ignore) for operation in self._state_sync.pending_operations()]
        batch += self.operations.pending_operations()
        if batch:
            batch += [(operation, ignore) for operation in self._placements.pending_operations()]
        if self._shared_budgets is not None:
            batch += [(operation, ignore) for operation in self._shared_budgets.pending_operations()]
        return batch

    def _joining(self) -> Batch:
        assert self._shared_budgets is not None
        self._renew = False
        self._state_sync.resend_all()
        budgets = self._shared_budgets
        claims: Batch = [(op, lambda answer: budgets.claimed(answer[0], self.id)) for op in budgets.claim(today())]
        return [
            (self.slots.renewal(self.gateways), self._renewed),
            *claims,
            (("read_spending", days(today())), self._read_spending),
            (("news", 0), self._read_news),
            *((operation, ignore) for operation in self._state_sync.pending_operations()),
            (("news", 0), self._joined),
        ]

    # -- answers and messages -------------------------------------------------------------------------------------

    def _renewed(self, answer: list[Any]) -> None:
        present, loads, granted = answer
        self.slots.renewed(loads, granted)
        if present > self.gateways or (self.joined and time.time() - self.since > SETTLED):
            self._count(present)

    def _count(self, present: int) -> None:
        if present != self.gateways:
            self._identity.gateways = present
            log.info("%d gateways share the fleet", present)
            # Not awaited: a thread writes these hundred bytes.
            asyncio.get_running_loop().run_in_executor(None, save_identity, self._folder, self._identity)

    def _joined(self, _: Any) -> None:
        assert self._shared_budgets is not None
        self._shared_budgets.resend_all()
        self._fleet.sharers = 1
        self.slots.join()
        self._renew = True  # report what has changed here since the renewal was sent
        self._change(f"joined the gateways at redis {self._redis.where}")
        log.info("%s: %d of them", self.reason, self.gateways)
        self._tried.set()

    def _read_news(self, answer: list[Any]) -> None:
        self._state_sync.receive(*answer)

    def _read_spending(self, answer: list[Any]) -> None:
        assert self._shared_budgets is not None
        self._shared_budgets.read(answer[0], answer[1], self.id)

    def _on_message(self, message: list[Any]) -> None:
        """A message of another gateway, or of the script: slots were granted to a request that waits here."""
        kind = message[0]
        if kind == "granted":
            self.slots.granted(*message[1:])
        elif kind == "held":
            self.slots.held(message[2])
        elif message[1] == self.id or self._shared_budgets is None:
            return
        elif kind == "news":
            self._news = True
            self._redis.wake()
        elif kind == "spend":
            self._shared_budgets.receive(*message[1:])
        elif kind == "placed":
            self._placements.receive(message[2])
        elif kind == "merged":
            self._shared_budgets.merged(message[2])
        if kind in ("came", "gone") and self.joined:  # renew at once to learn the new number and reservations
            self._renew = True
            self._redis.wake()

    def _on_redis_lost(self, reason: str) -> None:
        """Redis is away: requests that wait are served by this gateway alone from now on."""
        self._nudge.set()
        self._tried.set()
        self.operations.lost()
        if self.joined or not self.times_away:
            self.times_away += 1
            self._fleet.sharers = self.gateways
            self.slots.serve_alone(self.gateways)
            share = f"with a share of the slots (1 of {self.gateways} gateways)"
            self._change(f"redis {self._redis.where} is away ({reason}): goes on alone, {share}")
            log.warning("%s", self.reason)

    def _change(self, reason: str) -> None:
        self.reason, self.since = reason, time.time()
        self._emit(Event(self.since, "shared", "", reason))

    # -- status ---------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """For `/status`. `since` in Unix seconds; `away`: how often Redis was away."""
        return {
            "joined": self.joined,
            "gateways": self.gateways,
            "redis": self._redis.where,
            "since": self.since,
            "reason": self.reason,
            "away": self.times_away,
            "trips": self.trips,
        }


class GatewayIdentity(msgspec.Struct):
    """`owner` stays the same across restarts: spending is counted under this name. `gateways`: as last counted, this
    one included."""

    owner: str
    gateways: int = 1


def load_identity(folder: Path) -> GatewayIdentity:
    """The identity stored in the folder `server.data`; a new one where there is none, or it cannot be read."""
    new = "this gateway counts as a new one"
    identity = read_kept(folder / NAME, GatewayIdentity, log, new)
    if identity is not None:
        if _OWNER.fullmatch(identity.owner) and 0 < identity.gateways <= GATEWAYS_MOST:
            return identity
        log.warning("%s is not valid: %s", folder / NAME, new)
    return GatewayIdentity(uuid.uuid4().hex)


def save_identity(folder: Path, identity: GatewayIdentity) -> None:
    """Blocks. A write that fails is logged and ignored."""
    keep(folder / NAME, identity, log)
