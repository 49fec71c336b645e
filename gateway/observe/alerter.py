"""Checks the fleet every few seconds, sends the alerts that alerts.py decides on, and pings the dead man's switch.

Nothing here is on the request path: the methods that other parts call only record a fact for the next check.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gateway.config.snapshot import Alerts, Secret
from gateway.observe.alerts import Alert, AlertState
from gateway.routing.alias_status import AliasStatusTracker
from gateway.shortage import Kind as Shortage
from gateway.supervision import Failures

if TYPE_CHECKING:
    import httpx

    from gateway.observe.alert_sender import AlertSender, RetryPolicy

log = logging.getLogger("gateway.alerts")

CHECK_EVERY = 2.0  # seconds between two checks
SHORT_FOR = 60.0  # seconds after the last shortage until it counts as over
PING = 60.0  # seconds between two pings of the dead man's switch


class Alerter:
    """Sends to the channels in `alerts` of the snapshot in force; a new snapshot counts from the next check. `spent`:
    budget -> share that is spent (1 = all). `failed`: part of the gateway -> how often it has failed. `acceptance`:
    backend that drafts -> share of its draft tokens that were accepted lately. `unstarted`: backend that could not be
    started for a request -> why."""

    def __init__(
        self,
        status: AliasStatusTracker,
        spent: Callable[[], Mapping[str, float]] = dict,
        *,
        failed: Callable[[], Mapping[str, int]] = dict,
        acceptance: Callable[[], Mapping[str, float]] = dict,
        failures: Failures | None = None,
        unstarted: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.state = AlertState()
        self.senders: tuple[AlertSender, ...] = ()
        self.telegram: str | None = None  # base URL of the bot API; None: Telegram's own
        self.retries: RetryPolicy | None = None
        self.check_every = CHECK_EVERY
        self.ping_every = PING
        self.origin = socket.gethostname()
        self._status = status
        self._spent = spent
        self._failed = failed
        self._acceptance = acceptance
        self._unstarted = unstarted
        self._failures = failures or Failures()
        self._refused: str | None = None
        self._short: dict[Shortage, float] = {}  # what the gateway has lacked -> when last, in monotonic seconds
        self._alerts = Alerts()
        self._client: httpx.AsyncClient | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # -- facts that other parts report ----------------------------------------------------------------------------

    def edit_refused(self, problem: str) -> None:
        """routes.yaml was edited and is not valid; `problem` is for people."""
        self._refused = problem

    def short_of(self, kind: Shortage) -> None:
        """The gateway process has just lacked a resource."""
        self._short[kind] = time.monotonic()

    @property
    def short(self) -> tuple[Shortage, ...]:
        """The resources that it has lacked in the last SHORT_FOR seconds."""
        since = time.monotonic() - SHORT_FOR
        return tuple(sorted(kind for kind, at in self._short.items() if at > since))

    @property
    def refused(self) -> str | None:
        """The problem of routes.yaml as it is now; None if it is in force."""
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
        """Messages that are not sent yet are dropped, so that the gateway stops without delay."""
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
                await self.check()
            except Exception:
                self._failures.note("alerts", "the check for alerts")
            await asyncio.sleep(self.check_every)

    async def check(self) -> None:
        """One check. Without channels nothing is recorded as sent: a lasting trouble is sent as soon as there is a
        channel."""
        self._status.look()
        await self._connect(self._status.alerts)
        if self.senders:
            facts = self._refused, self._failed(), self.short, self._acceptance(), self._unstarted()
            picture = self._status.picture(self._spent(), *facts)
            self.send(self.state.step(time.monotonic(), picture))

    def send(self, alerts: list[Alert]) -> None:
        """Send the alerts, as one message, to every channel."""
        if not alerts:
            return
        for alert in alerts:
            log.info("alert: %s", alert.text)
        from gateway.observe.channels import AlertMessage

        message = AlertMessage(tuple(alerts), self.origin, time.time())
        for sender in self.senders:
            sender.enqueue(message)

    async def _connect(self, alerts: Alerts) -> None:
        """Make a sender for each channel of `alerts`; the senders of unchanged channels stay."""
        if alerts == self._alerts:
            return
        await _import_channels()
        self._alerts = alerts
        from gateway.observe.alert_sender import AlertSender
        from gateway.observe.channels import channels_of

        wanted = channels_of(alerts, self.telegram)
        kept = {sender.channel: sender for sender in self.senders if sender.channel in wanted}
        gone = [sender for sender in self.senders if sender.channel not in wanted]
        self.senders = tuple(
            kept.get(channel) or AlertSender(channel, self._open_client(), self.retries, self._failures)
            for channel in wanted
        )
        for sender in gone:
            await sender.close()

    def _open_client(self) -> httpx.AsyncClient:
        if self._client is None:
            from gateway.observe.channels import new_client

            self._client = new_client()
        return self._client

    # -- the dead man's switch ------------------------------------------------------------------------------------

    async def _ping(self) -> None:
        """A failure is logged when it begins and when it ends."""
        well = True
        while True:
            began = time.monotonic()
            url = self._status.alerts.deadman
            if url is not None:
                well = await self._ping_once(url, well)
            await asyncio.sleep(max(0.0, began + self.ping_every - time.monotonic()))

    async def _ping_once(self, url: Secret, well: bool) -> bool:
        await _import_channels()
        from gateway.observe.channels import DeadmanChannel

        deadman = DeadmanChannel(url)
        try:
            answer = await deadman.ping(self._open_client())
        except Exception:
            self._failures.note("alerts", f"pinging {deadman.name}")
            return False
        if answer.ok != well:
            log.log(logging.INFO if answer.ok else logging.WARNING, "%s: %s", deadman.name, answer.detail)
        return answer.ok


async def _import_channels() -> None:
    """The channels need httpx, which takes 4 MB and a tenth of a second to import: only where there are alerts, and in
    a thread, so that requests go on."""
    await asyncio.to_thread(importlib.import_module, "gateway.observe.alert_sender")
