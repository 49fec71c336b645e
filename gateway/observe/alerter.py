"""Looks at the fleet every few seconds and has told what alerts.py says must be told; pings the dead man's switch.

Never on the request path: the hooks that others call only write something down.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping

import httpx

from gateway.config.snapshot import Alerts, Secret
from gateway.observe.alert_sender import Courier, Patience
from gateway.observe.alerts import Alert, AlertState, Timing
from gateway.observe.channels import TELEGRAM, Deadman, Message, channels_of, new_client
from gateway.routing.alias_status import AliasStatusTracker
from gateway.shortage import Kind as Shortage
from gateway.supervision import Failures

log = logging.getLogger("gateway.alerts")

LOOK = 2.0  # seconds between two looks
SHORT_FOR = 60.0  # seconds without another shortage until it is over
PING = 60.0  # seconds between two pings of the dead man's switch


class Alerter:
    """`alerts` of the snapshot in force count: a new one from the next look on. `spent` gives the share of each budget
    that is spent, `failed` how often parts of the gateway have failed. The seconds and `telegram` (the bot API's base
    URL) are others in tests only."""

    def __init__(
        self,
        status: AliasStatusTracker,
        spent: Callable[[], Mapping[str, float]] = dict,
        *,
        failed: Callable[[], Mapping[str, int]] = dict,
        failures: Failures | None = None,
        timing: Timing | None = None,
        patience: Patience | None = None,
        look: float = LOOK,
        ping: float = PING,
        telegram: str = TELEGRAM,
    ) -> None:
        self.state = AlertState(timing)
        self.couriers: tuple[Courier, ...] = ()
        self.telegram = telegram
        self.patience = patience or Patience()
        self.every = look
        self.ping_every = ping
        self.origin = socket.gethostname()
        self._status = status
        self._spent = spent
        self._failed = failed
        self._failures = failures or Failures()
        self._budgets: dict[str, float] = {}
        self._refused: str | None = None
        self._short: dict[Shortage, float] = {}  # what the gateway has lacked -> when last, in monotonic seconds
        self._alerts = Alerts()
        self._client: httpx.AsyncClient | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # -- what others say ------------------------------------------------------------------------------------------

    def budget_reached(self, name: str, share: float) -> None:
        """So much of a budget that `spent` does not know is spent (1 = all of it); told at 80 and 100 %. Say it also
        when a new period has begun, with what is spent of that."""
        self._budgets[name] = share

    def edit_refused(self, problem: str) -> None:
        """routes.yaml was edited and is not valid: what is wrong, in words."""
        self._refused = problem

    def short_of(self, kind: Shortage) -> None:
        """The gateway itself has just lacked something."""
        self._short[kind] = time.monotonic()

    @property
    def short(self) -> tuple[Shortage, ...]:
        """What it has lately lacked."""
        since = time.monotonic() - SHORT_FOR
        return tuple(sorted(kind for kind, at in self._short.items() if at > since))

    @property
    def refused(self) -> str | None:
        """What is wrong with routes.yaml as it is now; None = it is in force."""
        return self._refused

    def edit_taken(self) -> None:
        """routes.yaml as it is now is in force."""
        self._refused = None

    # -- life -----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self._tasks = [
            self._failures.task("alerts", self._watch),
            self._failures.task("alerts", self._ping, "deadman"),
        ]

    async def close(self) -> None:
        """What is not sent yet is dropped: a gateway that stops does not wait for a messenger."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._connect(Alerts())
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                self._failures.note("alerts", "the look at what has to be told")
            await asyncio.sleep(self.every)

    async def look(self) -> None:
        """One look. Without channels nothing counts as told, so that what lasts is told once there are some."""
        self._status.look()
        await self._connect(self._status.alerts)
        if self.couriers:
            budgets = {**self._budgets, **self._spent()}
            picture = self._status.picture(budgets, self._refused, self._failed(), self.short)
            self.tell(self.state.step(time.monotonic(), picture))

    def tell(self, alerts: list[Alert]) -> None:
        """One message to every channel."""
        if not alerts:
            return
        for alert in alerts:
            log.info("alert: %s", alert.text)
        message = Message(tuple(alerts), self.origin, time.time())
        for courier in self.couriers:
            courier.put(message)

    async def _connect(self, alerts: Alerts) -> None:
        """A courier for each channel of `alerts`; those that lead to the same place as before go on."""
        if alerts == self._alerts:
            return
        self._alerts = alerts
        wanted = channels_of(alerts, self.telegram)
        kept = {courier.channel: courier for courier in self.couriers if courier.channel in wanted}
        gone = [courier for courier in self.couriers if courier.channel not in wanted]
        self.couriers = tuple(
            kept.get(channel) or Courier(channel, self._open_client(), self.patience, self._failures)
            for channel in wanted
        )
        for courier in gone:
            await courier.close()

    def _open_client(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = new_client()
        return self._client

    # -- the dead man's switch ------------------------------------------------------------------------------------

    async def _ping(self) -> None:
        """Failures are logged when they begin and when they end."""
        well = True
        while True:
            began = time.monotonic()
            url = self._status.alerts.deadman
            if url is not None:
                well = await self._ping_once(url, well)
            await asyncio.sleep(max(0.0, began + self.ping_every - time.monotonic()))

    async def _ping_once(self, url: Secret, well: bool) -> bool:
        deadman = Deadman(url)
        try:
            answer = await deadman.ask(self._open_client())
        except Exception:
            self._failures.note("alerts", f"asking {deadman.name}")
            return False
        if answer.ok != well:
            log.log(logging.INFO if answer.ok else logging.WARNING, "%s: %s", deadman.name, answer.said)
        return answer.ok
