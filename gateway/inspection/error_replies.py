"""What an upstream's error answer means: the table of docs/failover.md as one pure function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from html import unescape
from time import time
from typing import Any

import msgspec

from gateway.domain.reason import quoting
from gateway.inspection.known_errors import (
    Overflow,
    guess_lack,
    guess_overflow,
    is_busy,
    is_missing_path,
    like_missing_model,
    read_lack,
    read_missing_model,
    read_overflow,
)

MESSAGE_MOST = 2000  # characters of a backend's message that are passed on

Echoed = Callable[[str, bool], bool]
"""Does a phrase stand in the client's own body? The flag is the answer for a body that is too large to be searched."""


def _not_echoed(_: str, __: bool) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do after an answer that is not the one asked for.

    `kind`: failed (counts against health) | cooldown | misconfigured | unserved | incapable | too_long | client (passed
    on); of an answer that came whole: empty | disobeyed (a call was demanded, and none came). `lack`: the capability
    learned to be missing. `window`, `prompt_tokens`: numbers the backend told (`least`: it counted no further).
    `hearsay`: told in words that need not be the server's own, so it counts for this request alone.
    """

    kind: str
    reason: str
    status: int = 0
    message: str = ""
    param: str | None = None
    code: str | None = None
    lack: str | None = None
    retry_after: float | None = None
    window: int | None = None
    prompt_tokens: int | None = None
    limit_only: bool = False  # too_long, and only because of the answer's limit
    least: bool = False
    hearsay: bool = False


def judge(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    endpoint: str,
    *,
    model: str | None = None,
    echoed: Echoed = _not_echoed,
) -> Verdict:
    """The meaning of an HTTP answer with `status` >= 300. `endpoint` is the inference endpoint's name, `model` the name
    that the backend was asked by."""
    message, param, code, shape = read_error(body, headers.get("content-type", ""))
    said = quoting(f"answered {status}", message)
    if status in (401, 403):
        refusal = quoting(f"refuses our credential ({status}); check its api_key", message)
        return Verdict("misconfigured", refusal, status, message)
    if status == 429:
        return Verdict("cooldown", said, status, message, retry_after=retry_after(headers))
    if status == 404 and (verdict := _not_there(message, shape, endpoint, model, echoed)) is not None:
        return verdict
    if status >= 500:
        if status == 503 and is_busy(message):
            # Its own queue is full. Busy is not dead.
            return Verdict("cooldown", said, status, message, retry_after=retry_after(headers) or 1.0)
        return Verdict("failed", said, status, message)
    if status < 400:
        return Verdict("failed", f"answered with a redirect ({status})", status, message)
    if status in (400, 413, 422) and (meaning := _bad_request(status, message, code, echoed)) is not None:
        return meaning
    return Verdict("client", said, status, message or f"The backend refused the request ({status}).", param, code)


def _not_there(message: str, shape: str, endpoint: str, model: str | None, echoed: Echoed) -> Verdict | None:
    """A 404: no such model, no such path, or something of the client's that is not there (None)."""
    name, unknown = read_missing_model(message), quoting("does not serve this model", message)
    if name is not None and (model is None or name == model) and not echoed(message, True):
        return Verdict("misconfigured", unknown, 404, message)
    if name is not None or (like_missing_model(message) and not echoed(message, False)):
        return Verdict("misconfigured", unknown, 404, message, hearsay=True)
    if shape in ("detail", "html", "text") or not message:  # a server's or a proxy's words, not an API's
        hearsay = not is_missing_path(message) or (message != "" and echoed(message, True))
        lack = "endpoint:" + endpoint
        return Verdict("unserved", "does not serve this endpoint", 404, message, lack=lack, hearsay=hearsay)
    return None


def _bad_request(status: int, message: str, code: str | None, echoed: Echoed) -> Verdict | None:
    """What a 400 says of the backend; None = it is about the request."""
    if (lack := read_lack(message)) is not None:
        return _incapable(status, message, lack, hearsay=echoed(message, True))
    if (overflow := read_overflow(message)) is not None:
        return _too_long(status, message, overflow, hearsay=not overflow.sound or echoed(message, True))
    if (like := guess_lack(message)) is not None and not echoed(like[0], False):
        return _incapable(status, message, like[1], hearsay=True)
    if (guess := guess_overflow(message)) is not None and not echoed(guess[0], False):
        return _too_long(status, message, guess[1], hearsay=True)
    if code == "context_length_exceeded":
        return _too_long(status, message, Overflow(), hearsay=True)
    return None


_CANNOT = {
    "tools": "cannot call tools: {}",
    "tool_parser": "cannot call tools: {}",
    "thinking": "cannot think: {}",
    "images": "takes no images: it serves a text model",
}


def _incapable(status: int, message: str, lack: str, *, hearsay: bool) -> Verdict:
    return Verdict("incapable", _CANNOT[lack].format(message), status, message, lack=lack, hearsay=hearsay)


def _too_long(status: int, message: str, found: Overflow, *, hearsay: bool) -> Verdict:
    return Verdict(
        "too_long",
        message,
        status,
        message,
        window=found.window,
        prompt_tokens=found.prompt,
        limit_only=found.limit_only,
        least=found.least,
        hearsay=hearsay,
    )


def read_error(body: bytes, content_type: str) -> tuple[str, str | None, str | None, str]:
    """(message, param, code, shape) of an error in any shape: OpenAI's and vLLM's envelope, `{"detail"}`,
    `{"error": "text"}`, `{"message"}`, HTML, plain text. shape: error | detail | message | html | text."""
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _read_text(body, content_type)
    if isinstance(value, list) and value:  # Gemini's compatible endpoint
        value = value[0]
    if not isinstance(value, dict):
        return _text(value), None, None, "text"
    error = value.get("error")
    if isinstance(error, dict):
        message, param, code = error.get("message"), error.get("param"), error.get("code")
        return (
            _text(message) if message is not None else _text(error),
            param if isinstance(param, str) else None,
            code if isinstance(code, str) else None,
            "error",
        )
    for key, shape in (("error", "error"), ("detail", "detail"), ("message", "message")):
        if value.get(key):
            return _text(value[key]), None, None, shape
    return _text(value) if value else "", None, None, "text"


def _text(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    except (ValueError, OverflowError, RecursionError):
        text = f"something of type {type(value).__name__}"
    return text[:MESSAGE_MOST]


def _read_text(body: bytes, content_type: str) -> tuple[str, str | None, str | None, str]:
    text = body[: 4 * MESSAGE_MOST].decode("utf-8", "replace").strip()
    if "html" in content_type or text[:1] == "<":
        title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
        plain = title.group(1) if title else re.sub(r"<[^>]*>", " ", text)
        return " ".join(unescape(plain).split())[:200], None, None, "html"
    return text[:MESSAGE_MOST], None, None, "text"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """`Retry-After` in seconds, from its number or its date."""
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
