"""Alerts, as an app of a gateway: checks the fleet every few seconds, sends the alerts that alerts.py decides on, and
pings the dead man's switch."""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.admission.origins import is_loopback
from gateway.apps.alerts.alert import Alert, FleetPicture
from gateway.apps.alerts.alerts import AlertState
from gateway.config.snapshot import Alerts, Backend, Secret
from gateway.runtime.apps import Extension
from gateway.runtime.gateway import Gateway
from gateway.supervision import cancel

if TYPE_CHECKING:
    import httpx

    from gateway.apps.alerts.sender import AlertSender, RetryPolicy

log = logging.getLogger("gateway.alerts")

CHECK_EVERY = 2.0  # seconds between two checks
PING = 60.0  # seconds between two pings of the dead man's switch


def app(gateway: Gateway) -> Extension:
    return Extension(part=Alerter(gateway))


class Alerter:
    """Sends to the channels in `alerts` of the snapshot in force; a new snapshot counts from the next check."""

    def __init__(self, gateway: Gateway) -> None:
        self.state = AlertState()
        self.senders: tuple[AlertSender, ...] = ()
        self.telegram: str | None = None  # base URL of the bot API; None: Telegram's own
        self.retries: RetryPolicy | None = None
        self.check_every = CHECK_EVERY
        self.ping_every = PING
        self.origin = socket.gethostname()
        self._gateway = gateway
        self._failures = gateway.metrics.failures
        self._alerts = Alerts()
        self._client: httpx.AsyncClient | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        self._tasks = [
            self._failures.task("alerts", self._watch),
            self._failures.task("alerts", self._ping, "deadman"),
        ]

    async def close(self) -> None:
        """Messages that are not sent yet are dropped, so that the gateway stops without delay."""
        await cancel(*self._tasks)
        self._tasks = []
        await self._connect(Alerts())
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _watch(self) -> None:
        while True:
            await self.check()
            await asyncio.sleep(self.check_every)

    async def check(self) -> None:
        """One check. Without channels nothing is recorded as sent: a lasting trouble is sent as soon as there is a
        channel."""
        self._gateway.alias_status.look()
        await self._connect(self._gateway.snapshot.alerts)
        if self.senders:
            self.send(self.state.step(time.monotonic(), picture_of(self._gateway)))

    def send(self, alerts: list[Alert]) -> None:
        """Send the alerts, as one message, to every channel."""
        if not alerts:
            return
        for alert in alerts:
            log.info("alert: %s", alert.text)
        from gateway.apps.alerts.channels import AlertMessage

        message = AlertMessage(tuple(alerts), self.origin, time.time())
        for sender in self.senders:
            sender.enqueue(message)

    async def _connect(self, alerts: Alerts) -> None:
        """Make a sender for each channel of `alerts`; the senders of unchanged channels stay."""
        if alerts == self._alerts:
            return
        await _import_channels()
        self._alerts = alerts
        from gateway.apps.alerts.channels import channels_of
        from gateway.apps.alerts.sender import AlertSender

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
            from gateway.apps.alerts.channels import new_client

            self._client = new_client()
        return self._client

    # -- the dead man's switch ------------------------------------------------------------------------------------

    async def _ping(self) -> None:
        """A failure is logged when it begins and when it ends."""
        well = True
        while True:
            began = time.monotonic()
            url = self._gateway.snapshot.alerts.deadman
            if url is not None:
                well = await self._ping_once(url, well)
            await asyncio.sleep(max(0.0, began + self.ping_every - time.monotonic()))

    async def _ping_once(self, url: Secret, well: bool) -> bool:
        await _import_channels()
        from gateway.apps.alerts.channels import DeadmanChannel

        deadman = DeadmanChannel(url)
        try:
            answer = await deadman.ping(self._open_client())
        except Exception:
            self._failures.note("alerts", f"pinging {deadman.name}")
            return False
        if answer.ok != well:
            log.log(logging.INFO if answer.ok else logging.WARNING, "%s: %s", deadman.name, answer.detail)
        return answer.ok


def picture_of(gateway: Gateway) -> FleetPicture:
    """What alerts follow, as it is now. Aliases that are a backend's own name are left out: the backend is reported
    already."""
    status, snapshot = gateway.alias_status, gateway.snapshot
    aliases = [view for name, view in status.aliases.items() if not snapshot.aliases[name].implicit]
    troubles = gateway.apps.troubles()
    hosts = {name: _host(state.backend) for name, state in gateway.fleet.states.items()}
    return FleetPicture(
        tuple(status.backends.values()),
        tuple(aliases),
        budgets=gateway.budget_shares(),
        refused_edit=gateway.refused_edit,
        failed=gateway.failed_parts(),
        short=gateway.short,
        acceptance=gateway.apps.acceptance(),
        acceptance_least=snapshot.alerts.draft_acceptance,
        recovered=gateway.apps.recovered(),
        unstarted=gateway.admission.starts.unstarted if gateway.admission.starts is not None else {},
        hosts={name: host for name, host in hosts.items() if host},
        addresses={host: address for name, host in hosts.items() if host and (address := _address(gateway, name))},
        before={
            view.name: tuple(name for step in snapshot.aliases[view.name].steps[: view.step] for name in step)
            for view in aliases
        },
        mends={name: (trouble["cause"] or "", trouble["mend"]) for name, trouble in troubles.items()},
        usd={view.name: usd for view in aliases if (usd := status.cost(view.name))},
    )


def _host(backend: Backend) -> str | None:
    """The backend's machine: its node, else the host of its URL; None: it has neither."""
    return backend.nodes[0] if backend.nodes else urlsplit(backend.url or "").hostname


def _address(gateway: Gateway, name: str) -> str | None:
    """Where the backend's machine is pinged; None: it is this one."""
    backend = gateway.fleet.states[name].backend
    node = gateway.snapshot.nodes.get(backend.nodes[0]) if backend.nodes else None
    address = (node.address if node is not None else None) or urlsplit(backend.url or "").hostname
    return None if address is None or is_loopback(address) else address


async def _import_channels() -> None:
    """The channels need httpx, which takes 4 MB and a tenth of a second to import: only where there are alerts, and in
    a thread, so that requests go on."""
    await asyncio.to_thread(importlib.import_module, "gateway.apps.alerts.sender")
