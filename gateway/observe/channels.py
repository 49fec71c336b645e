"""Where alerts are sent: a Telegram bot, a webhook; and the dead man's switch. Each is one HTTP request and the meaning
of its answer. The URLs are secrets: logs and messages show nothing of them but the host."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx
import msgspec

from gateway.config.snapshot import Alerts, Secret
from gateway.inspection.error_replies import retry_after
from gateway.observe.alerts import Alert
from gateway.printable import visible
from gateway.transport.bounded import Oversized, async_client, identity, read

TELEGRAM = "https://api.telegram.org"
TELEGRAM_MOST = 4000  # characters of a message (Telegram: 4096, as UTF-16 counts them)
PATIENCE = 10.0  # seconds for one request, from the connection to the end of its answer
READ_MOST = 4096  # bytes of an answer that are read
DETAIL_MOST = 200  # characters of it that are shown
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
        lines = "\n".join(visible(alert.text) for alert in self.alerts)
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
        text = message.text(now)
        if len(text) > TELEGRAM_MOST:
            text = text[: TELEGRAM_MOST - 3] + "..."
        body = {"chat_id": self.chat, "text": text, "disable_web_page_preview": True}
        url = f"{self.base}/bot{self.token.reveal()}/sendMessage"
        return await request(client, "POST", url, body, (self.token,), self.patience)


@dataclass(frozen=True, slots=True)
class WebhookChannel:
    """`{"text", "gateway", "at", "alerts": [{"kind", "name", "text", "good"}]}`. `text` is escaped as Slack wants."""

    url: Secret
    patience: float = PATIENCE

    @property
    def name(self) -> str:
        return f"webhook ({host_of(self.url)})"

    async def send(self, client: httpx.AsyncClient, message: AlertMessage, now: float) -> DeliveryResult:
        alerts = [{"kind": a.kind, "name": a.name, "text": a.text, "good": a.good} for a in message.alerts]
        body = {"text": for_slack(message.text(now)), "gateway": message.origin, "at": message.at, "alerts": alerts}
        return await request(client, "POST", self.url.reveal(), body, (self.url,), self.patience)


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
    return tuple(found)


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


def for_slack(text: str) -> str:
    """Escaped for Slack, which reads `<...>` as a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
