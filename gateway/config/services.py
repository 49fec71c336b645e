"""Apprise, which knows the services of `alerts.notify`. Imported only where a file has that key: it takes half a second
and 35 MB.

Apprise logs URLs, and the requests that it makes are logged with theirs. So nothing of that gets into the log; what it
reports of a message is collected."""

from __future__ import annotations

import logging
import re
from contextvars import ContextVar
from typing import Any, NamedTuple

INSTALL = "pip install 'spark-gateway[alerts]'"


class ServiceReply(NamedTuple):
    """Whether a message was accepted, what apprise reported, and how many recipients the URL names."""

    accepted: bool
    reports: tuple[str, ...]
    recipients: int


_lines: ContextVar[list[str] | None] = ContextVar("lines", default=None)  # apprise's, of the message that is being sent


def _of_apprise(record: logging.LogRecord) -> bool:
    """A filter that lets nothing pass. What apprise logs while a message is sent belongs to that message."""
    lines = _lines.get()
    if lines is not None and record.levelno >= logging.WARNING:
        lines.append(record.getMessage())
    return False


def _of_others(record: logging.LogRecord) -> bool:
    return _lines.get() is None


def _apprise() -> Any:
    """The library, quiet. Raises ImportError."""
    logging.getLogger("apprise").addFilter(_of_apprise)  # once, however often this is called
    for name in ("urllib3.connectionpool", "requests_oauthlib.oauth1_session", "oauthlib.oauth1.rfc5849"):
        logging.getLogger(name).addFilter(_of_others)
    import apprise

    return apprise


def service_of(url: str) -> Any:
    """Apprise's object for this URL. Raises ImportError, or ValueError without the URL."""
    if not re.match(r"[A-Za-z0-9+.-]{1,30}://.", url):
        raise ValueError("is not a URL")
    apprise = _apprise()
    asset = apprise.AppriseAsset(
        app_id="gateway",
        app_desc="gateway",
        app_url="",
        async_mode=False,  # in this thread
        storage_mode=apprise.PersistentStoreMode.MEMORY,
    )
    found = apprise.Apprise.instantiate(url, asset=asset)
    if found is None:
        raise ValueError("is not the URL of a service that apprise knows, or not a complete one")
    return found


def deliver(url: str, title: str, text: str, good: bool) -> ServiceReply:
    """Send one message and wait for what becomes of it. Raises as `service_of`."""
    service = service_of(url)
    apprise = _apprise()
    channel = apprise.Apprise(asset=service.asset)
    channel.add(service)
    kind = apprise.NotifyType.SUCCESS if good else apprise.NotifyType.WARNING
    lines: list[str] = []
    sending = _lines.set(lines)
    try:
        accepted = channel.notify(text, title=title, notify_type=kind, body_format=apprise.NotifyFormat.TEXT)
    finally:
        _lines.reset(sending)
    return ServiceReply(bool(accepted), tuple(lines), len(service))
