"""Where alerts are sent: a Telegram bot, a webhook, a service of apprise; and the dead man's switch. The URLs are
secrets: logs and messages show nothing of them but the host, and of apprise's but the name of the service."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import httpx
import msgspec

from gateway.apps.alerts.alert import Alert, told
from gateway.config.services import INSTALL, ServiceReply, deliver
from gateway.config.snapshot import Alerts, Secret
from gateway.inspection.error_replies import retry_after
from gateway.printable import visible
from gateway.transport.bounded import Oversized, async_client, identity, read

TELEGRAM = "https://api.telegram.org"
TEXT_MOST = 4000  # characters of a message (Telegram: 4096, as UTF-16 counts them)
PATIENCE = 10.0  # seconds for one request, from the connection to the end of its answer
SERVICE_PATIENCE = 30.0  # seconds for a service of apprise, which may take several requests
READ_MOST = 4096  # bytes of an answer that are read
DETAIL_MOST = 200  # characters of it that are shown
_SHOWN = ("kind", "name", "text", "good", "cause", "do")
LATE = 120.0  # seconds after which a message shows when it was written

_secret_url: ContextVar[bool] = ContextVar("secret_url", default=False)


class _NoSecretUrls(logging.Filter):
    """httpx logs the URL of every request."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _secret_url.get()


@dataclass(frozen=True, slots=True)
class AlertMessage:
    """The alerts of one check. `origin`: the host name of the gateway; `at`: Unix seconds."""

    alerts: Sequence[Alert]
    origin: str
    at: float

    def text(self, now: float) -> str:
        """The text for people; with its time when it was written more than LATE seconds ago."""
        lines = "\n".join(visible(line) for line in told(self.alerts).split("\n"))
        written = f" ({datetime.fromtimestamp(self.at, UTC):%Y-%m-%d %H:%M} UTC)" if now - self.at > LATE else ""
        return f"[{self.origin}]{written} {lines}"


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """How a channel answered. `detail`: status and text, without secrets. `retry`: another attempt may help, not before
    `after` seconds."""

    ok: bool
    detail: str
    retry: bool = False
    after: float | None = None


class Channel(Protocol):
    """`name` is for people and has no secret. Equal channels have the same recipient."""

    @property
    def name(self) -> str: ...

    async def send(self, client: httpx.AsyncClient, message: AlertMessage, now: float) -> DeliveryResult:
        """One attempt at `now` (Unix seconds). Raises nothing but cancellation."""
        ...


@dataclass(frozen=True, slots=True)
class TelegramChannel:
    """A bot's sendMessage. `base`: the bot API's server."""

    token: Secret
    chat: str
    base: str = TELEGRAM
    patience: float = PATIENCE

    @property
    def name(self) -> str:
        return f"telegram (chat {self.chat})"

    async def send(self, client: httpx.AsyncClient, message: AlertMessage, now: float) -> DeliveryResult:
        body = {"chat_id": self.chat, "text": cut(message.text(now)), "disable_web_page_preview": True}
        url = f"{self.base}/bot{self.token.reveal()}/sendMessage"
        return await request(client, "POST", url, body, (self.token,), self.patience)


@dataclass(frozen=True, slots=True)
class WebhookChannel:
    """`{"text", "gateway", "at", "alerts": [{"kind", "name", "text", "good", "cause", "do"}]}`. `text` is escaped
    as Slack wants."""

    url: Secret
    patience: float = PATIENCE

    @property
    def name(self) -> str:
        return f"webhook ({host_of(self.url)})"

    async def send(self, client: httpx.AsyncClient, message: AlertMessage, now: float) -> DeliveryResult:
        alerts = [{key: getattr(alert, key) for key in _SHOWN} for alert in message.alerts]
        body = {"text": for_slack(message.text(now)), "gateway": message.origin, "at": message.at, "alerts": alerts}
        return await request(client, "POST", self.url.reveal(), body, (self.url,), self.patience)


class ServiceChannel:
    """A service that apprise can send to (ntfy, e-mail, Discord, ...). Apprise blocks, so each message has a thread of
    its own; there is never more than one for a service."""

    def __init__(self, url: Secret, place: int, patience: float = SERVICE_PATIENCE) -> None:
        self.url = url
        self.name = f"notify {place} ({url.reveal().partition('://')[0]})"
        self._patience = patience
        self._under_way: tuple[AlertMessage, asyncio.Future[DeliveryResult]] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServiceChannel) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    async def send(self, client: httpx.AsyncClient, message: AlertMessage, now: float) -> DeliveryResult:
        """A message that is still being sent is not sent again: a further attempt waits for the same answer."""
        under_way = self._under_way
        if under_way is not None and under_way[0] is not message and not under_way[1].done():
            return DeliveryResult(False, "still busy with the message before", retry=True)
        if under_way is None or under_way[0] is not message:
            under_way = self._under_way = message, asyncio.get_running_loop().create_future()
            try:
                threading.Thread(target=self._deliver, args=(*under_way, now), name="alert", daemon=True).start()
            except RuntimeError:  # no thread can be started
                self._under_way = None
                return DeliveryResult(False, "this machine has no thread for it", retry=True)
        try:
            async with asyncio.timeout(self._patience):
                answer = await asyncio.shield(under_way[1])
        except TimeoutError:
            return DeliveryResult(False, f"no answer within {self._patience:g} s", retry=True)
        self._under_way = None
        return answer

    def _deliver(self, message: AlertMessage, answered: asyncio.Future[DeliveryResult], now: float) -> None:
        good = all(alert.good for alert in message.alerts)
        try:
            found = deliver(self.url.reveal(), f"gateway on {message.origin}", cut(message.text(now)), good)
            answer = judge_service(found, self.url)
        except ImportError:
            answer = DeliveryResult(False, f"apprise is not installed: {INSTALL}")
        except Exception as error:  # of a service's code in apprise; its text may hold the URL
            answer = DeliveryResult(False, f"cannot be sent: {type(error).__name__}")
        with suppress(RuntimeError):  # the gateway has stopped meanwhile
            answered.get_loop().call_soon_threadsafe(_settle, answered, answer)


def _settle(answered: asyncio.Future[DeliveryResult], answer: DeliveryResult) -> None:
    if not answered.done():
        answered.set_result(answer)


@dataclass(frozen=True, slots=True)
class DeadmanChannel:
    """A URL that is pinged while the gateway runs; the service behind it raises the alarm when the pings stop."""

    url: Secret

    @property
    def name(self) -> str:
        return f"deadman ({host_of(self.url)})"

    async def ping(self, client: httpx.AsyncClient) -> DeliveryResult:
        return await request(client, "GET", self.url.reveal(), None, (self.url,), PATIENCE)


def channels_of(alerts: Alerts, telegram: str | None = None) -> tuple[Channel, ...]:
    """The channels of `alerts`. `telegram`: as of `Alerter`."""
    found: list[Channel] = []
    if alerts.telegram_token is not None and alerts.telegram_chat is not None:
        found.append(TelegramChannel(alerts.telegram_token, alerts.telegram_chat, telegram or TELEGRAM))
    if alerts.webhook is not None:
        found.append(WebhookChannel(alerts.webhook))
    services = dict.fromkeys(alerts.notify)
    return (*found, *(ServiceChannel(url, place) for place, url in enumerate(services, start=1)))


def new_client() -> httpx.AsyncClient:
    """A client for alerts. Also installs a filter: httpx no longer logs requests to secret URLs."""
    httpx_log = logging.getLogger("httpx")
    if not any(isinstance(f, _NoSecretUrls) for f in httpx_log.filters):
        httpx_log.addFilter(_NoSecretUrls())
    return async_client(PATIENCE)


async def request(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    body: object,
    secrets: Sequence[Secret],
    patience: float = PATIENCE,
) -> DeliveryResult:
    """One request and the meaning of its answer, whose detail has none of the `secrets`."""
    hidden = _secret_url.set(True)
    try:
        async with asyncio.timeout(patience):
            headers = identity({"content-type": "application/json"} if body is not None else {})
            content = msgspec.json.encode(body) if body is not None else None
            async with client.stream(method, url, content=content, headers=headers) as response:
                answer = judge(response.status_code, response.headers, await _beginning(response))
    except (TimeoutError, httpx.TimeoutException):
        answer = DeliveryResult(False, f"no answer within {patience:g} s", retry=True)
    except httpx.TransportError as error:
        answer = DeliveryResult(False, f"no connection: {error or type(error).__name__}", retry=True)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, UnicodeError) as error:
        answer = DeliveryResult(False, f"cannot be sent: {error or type(error).__name__}")
    finally:
        _secret_url.reset(hidden)
    return DeliveryResult(answer.ok, without(answer.detail, secrets), answer.retry, answer.after)


async def _beginning(response: httpx.Response) -> bytes:
    try:
        return await read(response, READ_MOST)
    except Oversized as error:
        return error.beginning


def judge(status: int, headers: Mapping[str, str], body: bytes) -> DeliveryResult:
    """2xx: accepted. 408, 425, 429 and 5xx: retry. Anything else needs a change of the configuration."""
    text = visible(" ".join(body.decode("utf-8", "replace").split())[:DETAIL_MOST])
    detail = f"{status}: {text}" if text else str(status)
    if 200 <= status < 300:
        return DeliveryResult(True, str(status))
    if status in (408, 425, 429) or status >= 500:
        return DeliveryResult(False, detail, retry=True, after=retry_after(headers) or _retry_after_in(body))
    return DeliveryResult(False, detail)


def judge_service(outcome: ServiceReply, url: Secret) -> DeliveryResult:
    """What apprise reports, without any part of the URL. It is tried again like an answer of HTTP; not where the URL
    names several recipients, since some may have got it."""
    if outcome.accepted:
        return DeliveryResult(True, "accepted")
    text = " ".join(outcome.reports)
    for piece in sorted(_pieces(url.reveal()), key=len, reverse=True):
        text = text.replace(piece, "***")
    status = re.search(r"error=(\d{3})\b", text)
    final = status is not None and 400 <= int(status[1]) < 500 and int(status[1]) not in (408, 425, 429)
    return DeliveryResult(
        False, visible(text)[:DETAIL_MOST] or "not accepted", retry=not final and outcome.recipients <= 1
    )


def _pieces(url: str) -> set[str]:
    """Every part of the URL behind its scheme that may be a secret, as written and unquoted."""
    rest = url.partition("://")[2]
    return {piece for text in (rest, unquote(rest)) for piece in re.split(r"[/:@?&=,;#]+", text) if len(piece) > 2}


def _retry_after_in(body: bytes) -> float | None:
    """`{"parameters": {"retry_after": seconds}}`, as Telegram has it in the body."""
    try:
        answer: Any = msgspec.json.decode(body)
        return max(0.0, float(answer["parameters"]["retry_after"]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, ValueError, OverflowError):
        return None


def without(text: str, secrets: Sequence[Secret]) -> str:
    """`text` with `***` for each secret, and for the path and the query of each that is a URL."""
    for secret in secrets:
        value = secret.reveal()
        hidden = [value]
        with suppress(ValueError):
            parts = urlsplit(value)
            hidden += [parts.path, parts.query] if parts.netloc else []
        for piece in hidden:
            if len(piece) > 1:
                text = text.replace(piece, "***")
    return text


def host_of(url: Secret) -> str:
    try:
        return urlsplit(url.reveal()).hostname or "no host"
    except ValueError:
        return "no host"


def cut(text: str) -> str:
    return text if len(text) <= TEXT_MOST else text[: TEXT_MOST - 3] + "..."


def for_slack(text: str) -> str:
    """Escaped for Slack, which reads `<...>` as a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
