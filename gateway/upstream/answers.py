"""What an upstream's error answer means: the table of docs/failover.md as one pure function."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from html import unescape
from time import time
from typing import Any

import msgspec

from gateway.health.reason import quoting

MESSAGE_MOST = 2000  # characters of a backend's message that are passed on

# vLLM's own words (0.11 to 0.32), and Ollama's. "No tools" is learned from nothing else. What vLLM says to a call on
# demand tells more (there is no parser) than what it says to auto (either flag may be missing).
_NO_PARSER = re.compile(r"requires --tool-call-parser to be set")
_NO_TOOLS = re.compile(r"requires --enable-auto-tool-choice and --tool-call-parser to be set|does not support tools")
_NO_THINKING = re.compile(r"does not support thinking")
_NOT_MULTIMODAL = re.compile(r"is not a multimodal model|missing data required for image input")
_NO_SUCH_MODEL = re.compile(r"\bmodel\b.*\b(does not exist|not found)", re.IGNORECASE | re.DOTALL)
_ENGINE_BUSY = re.compile(r"currently busy and cannot accept new requests")
_WINDOW = re.compile(r"maximum context length is (\d+)|max_model_len=(\d+)|maximum model length of (\d+)")
_PROMPT = re.compile(
    r"contains (?:at least )?(\d+) input tokens|your request has (\d+) input tokens|\((\d+) in the messages"
)
_OVERFLOW = re.compile(
    r"maximum context length|cannot be greater than max_model_len|maximum model length|context_length_exceeded"
    r"|exceeds? the (?:model's |available )?context|prompt is too long|longer than the context",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do after an answer that is not the one asked for.

    `kind`: failed (counts against health) | cooldown | misconfigured | unserved | incapable | too_long | client (passed
    on); of an answer that came whole: empty | disobeyed (a call was demanded, and none came). `lack`: the capability
    learned to be missing. `window`, `prompt_tokens`: numbers the backend told.
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


def judge(status: int, headers: Mapping[str, str], body: bytes, endpoint: str) -> Verdict:
    """The meaning of an HTTP answer with `status` >= 300. `endpoint` is the inference endpoint's name."""
    message, param, code, shape = read_error(body, headers.get("content-type", ""))
    said = quoting(f"answered {status}", message)
    if status in (401, 403):
        refusal = quoting(f"refuses our credential ({status}); check its api_key", message)
        return Verdict("misconfigured", refusal, status, message)
    if status == 429:
        return Verdict("cooldown", said, status, message, retry_after=retry_after(headers))
    if status == 404:
        if _NO_SUCH_MODEL.search(message):
            return Verdict("misconfigured", quoting("does not serve this model", message), status, message)
        if shape in ("detail", "html", "text") or not message:  # a server's or a proxy's words, not an API's
            return Verdict("unserved", "does not serve this endpoint", status, message, lack="endpoint:" + endpoint)
    if status >= 500:
        if status == 503 and _ENGINE_BUSY.search(message):
            # Its own queue is full. Busy is not dead.
            return Verdict("cooldown", said, status, message, retry_after=retry_after(headers) or 1.0)
        return Verdict("failed", said, status, message)
    if status < 400:
        return Verdict("failed", f"answered with a redirect ({status})", status, message)
    if status in (400, 413, 422) and (meaning := _bad_request(status, message)) is not None:
        return meaning
    return Verdict("client", said, status, message or f"The backend refused the request ({status}).", param, code)


def _bad_request(status: int, message: str) -> Verdict | None:
    if _NO_TOOLS.search(message):
        return Verdict("incapable", f"cannot call tools: {message}", status, message, lack="tools")
    if _NO_PARSER.search(message):
        return Verdict("incapable", f"cannot call tools: {message}", status, message, lack="tool_parser")
    if _NO_THINKING.search(message):
        return Verdict("incapable", f"cannot think: {message}", status, message, lack="thinking")
    if _NOT_MULTIMODAL.search(message):
        return Verdict("incapable", "takes no images: it serves a text model", status, message, lack="images")
    if _OVERFLOW.search(message):
        window, prompt = _number(_WINDOW, message), _number(_PROMPT, message)
        prompt_fits = window is not None and prompt is not None and prompt < window
        return Verdict(
            "too_long",
            message,
            status,
            message,
            window=window,
            prompt_tokens=prompt,
            limit_only=prompt_fits or "cannot be greater than max_model_len" in message,
        )
    return None


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(next(g for g in found.groups() if g)) if found else None


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
        return str(value)[:MESSAGE_MOST], None, None, "text"
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
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
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
    except (ValueError, TypeError):
        return None
