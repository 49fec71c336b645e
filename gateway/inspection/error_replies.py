"""The meaning of a backend's error answer: the table of docs/failover.md as one pure function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from html import unescape
from time import time
from typing import Any

from gateway.domain.body import value_of
from gateway.domain.reason import quoting
from gateway.inspection.known_errors import (
    Overflow,
    guess_lack,
    guess_overflow,
    is_busy,
    is_missing_path,
    is_missing_use,
    is_unsupported,
    like_missing_model,
    read_batch_limit,
    read_lack,
    read_missing_model,
    read_overflow,
    read_server_fault,
)
from gateway.inspection.shape import brief

POOL_PAUSE = 1.0  # seconds for a server whose requests have filled their common memory: they have all ended by then
UNREAD = "wrote what the parser of its own chat template cannot read"
MESSAGE_MOST = 2000  # characters of a backend's message that are passed on

Echoed = Callable[[str, bool], bool]
"""(phrase, unknown) -> does the client's own body contain the phrase? `unknown` is the result for a body that is too
large to be searched."""


def _not_echoed(_: str, __: bool) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do after an answer that cannot be delivered as the result.

    `kind`: failed (counts against health) | cooldown | misconfigured | unserved | incapable | too_long | client (passed
    on); for a complete answer: empty | disobeyed (a call was required, and none came). `lack`: the capability that the
    backend reports to be missing. `window`, `prompt_tokens`: numbers that the backend reported (`least`: it counted no
    further). `unverified`: the message may quote the client, so it applies to this request only and nothing is learned.
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
    limit_only: bool = False  # too_long only because of the answer's limit
    least: bool = False
    unverified: bool = False
    most_inputs: int | None = None  # the inputs that it takes in one request


def judge(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    endpoint: str,
    *,
    model: str | None = None,
    echoed: Echoed = _not_echoed,
) -> Verdict:
    """The meaning of an HTTP answer of 300 and more. `endpoint`: its name; `model`: the one that the request named."""
    message, param, code, shape = read_error(body, headers.get("content-type", ""))
    reason = quoting(f"answered {status}", message)
    if status in (401, 403):
        refusal = quoting(f"refuses our credential ({status}); check its api_key", message)
        return Verdict("misconfigured", refusal, status, message)
    if status == 429:
        return Verdict("cooldown", reason, status, message, retry_after=retry_after(headers))
    if status == 404 and (verdict := _not_there(message, shape, endpoint, model, echoed)) is not None:
        return verdict
    if status >= 500:
        if status == 503 and is_busy(message):
            # Its own queue is full: that is not a failure.
            return Verdict("cooldown", reason, status, message, retry_after=retry_after(headers) or 1.0)
        fault = _server_fault(status, message, endpoint, echoed) or _overflow(status, message, echoed)
        return fault or Verdict("failed", reason, status, message)
    if status < 400:
        return Verdict("failed", f"answered with a redirect ({status})", status, message)
    if status in (400, 424) and is_missing_use(message):
        reason, lack = "does not serve this endpoint", "endpoint:" + endpoint
        return Verdict("unserved", reason, status, message, lack=lack, unverified=echoed(message, True))
    if status in (400, 413, 422) and (meaning := _bad_request(status, message, code, echoed)) is not None:
        return meaning
    return Verdict("client", reason, status, message or f"The backend refused the request ({status}).", param, code)


_STATUS_OF = (
    (re.compile(r"rate.?limit|too.?many|throttl|quota"), 429),
    (re.compile(r"overload|unavailable"), 503),
    (re.compile(r"authentication|unauthorized|api.?key"), 401),
    (re.compile(r"permission|forbidden"), 403),
    (re.compile(r"context|invalid|bad.?request|unsupported|unprocessable|validation"), 400),
)


def told_status(body: bytes) -> int:
    """The HTTP status that an error inside of a 200 would have had: as it says itself, else by its type, else by its
    words; 0 = nothing tells it."""
    value = value_of(body)
    error = value.get("error") or value if isinstance(value, dict) else {}
    fields = error if isinstance(error, dict) else {}
    for stated in (str(fields.get(name)) for name in ("code", "status", "status_code")):
        if stated.isdecimal() and len(stated) == 3 and stated[0] in "45":
            return int(stated)
    words = " ".join(str(fields.get(name) or "") for name in ("type", "code"))
    for pattern, status in _STATUS_OF:
        if pattern.search(words.lower()):
            return status
    message, *_ = read_error(body, "application/json")
    known = read_lack(message) or read_overflow(message) or guess_lack(message) or guess_overflow(message)
    return 400 if known else 0


def _not_there(message: str, shape: str, endpoint: str, model: str | None, echoed: Echoed) -> Verdict | None:
    """The meaning of a 404: no such model, no such path, or (None) nothing that the client refers to."""
    name = read_missing_model(message)
    to_pull = f" (ollama pull {name})" if name is not None and name == model and message.startswith("model ") else ""
    unknown = quoting("does not serve this model" + to_pull, message)
    if name is not None and (model is None or name == model) and not echoed(message, True):
        return Verdict("misconfigured", unknown, 404, message)
    if name is not None or (like_missing_model(message) and not echoed(message, False)):
        return Verdict("misconfigured", unknown, 404, message, unverified=True)
    if shape in ("detail", "html", "text") or not message:  # the message of a web server or a proxy, not of an API
        unverified = not is_missing_path(message) or (message != "" and echoed(message, True))
        lack = "endpoint:" + endpoint
        return Verdict("unserved", "does not serve this endpoint", 404, message, lack=lack, unverified=unverified)
    return None


def _server_fault(status: int, message: str, endpoint: str, echoed: Echoed) -> Verdict | None:
    """The meaning of a 5xx that is no failure of the server; None = it is one."""
    fault = read_server_fault(message)
    if fault is None:
        return None
    reason = quoting(f"answered {status}", message)
    if fault.kind == "cooldown":
        return Verdict("cooldown", reason, status, message, retry_after=POOL_PAUSE)
    if fault.kind == "client":
        return Verdict("client", reason, 400, message)
    if fault.kind == "empty":
        return Verdict("empty", quoting(UNREAD, message), status, message)
    unverified = echoed(message, True)
    if fault.kind == "misconfigured":
        return Verdict("misconfigured", fault.says, status, message, unverified=unverified)
    if fault.lack is not None:
        return _incapable(status, fault.says or message, fault.lack, unverified=unverified)
    lack = "endpoint:" + endpoint
    return Verdict("unserved", "does not serve this endpoint", status, message, lack=lack, unverified=unverified)


def _bad_request(status: int, message: str, code: str | None, echoed: Echoed) -> Verdict | None:
    """What a 400 means for the backend; None = the request itself is wrong."""
    if (lack := read_lack(message)) is not None:
        # How large a body may be is not learned: the next request is another one.
        return _incapable(status, message, lack, unverified=lack == "body" or echoed(message, True))
    if is_unsupported(message):
        return Verdict("incapable", message, status, message, unverified=True)
    if read_overflow(message) is not None:
        return _overflow(status, message, echoed)
    if (most := read_batch_limit(message)) is not None:
        reason, unverified = f"takes at most {most:,} inputs in one request", echoed(message, True)
        return Verdict("incapable", reason, status, message, most_inputs=most, unverified=unverified)
    if (like := guess_lack(message)) is not None and not echoed(like[0], False):
        return _incapable(status, message, like[1], unverified=True)
    if (overflow := _overflow(status, message, echoed)) is not None:
        return overflow
    if code == "context_length_exceeded":
        return _too_long(status, message, Overflow(), unverified=True)
    return None


def _overflow(status: int, message: str, echoed: Echoed) -> Verdict | None:
    """The meaning of a message about a prompt that is too long; None = it is about something else."""
    if (overflow := read_overflow(message)) is not None:
        return _too_long(status, message, overflow, unverified=not overflow.sound or echoed(message, True))
    if (guess := guess_overflow(message)) is not None and not echoed(guess[0], False):
        return _too_long(status, message, guess[1], unverified=True)
    return None


_CANNOT = {
    "tools": "cannot call tools: {}",
    "tool_parser": "cannot call tools: {}",
    "thinking": "cannot think: {}",
    "images": "takes no images: it serves a text model",
    "audio": "takes no sound: it serves a text model",
    "pdf": "takes no PDF",
    "body": "takes no request of this size (VLLM_HTTP_MAX_REQUEST_BODY_SIZE)",
}


def _incapable(status: int, message: str, lack: str, *, unverified: bool) -> Verdict:
    return Verdict("incapable", _CANNOT[lack].format(message), status, message, lack=lack, unverified=unverified)


def _too_long(status: int, message: str, found: Overflow, *, unverified: bool) -> Verdict:
    return Verdict(
        "too_long",
        message,
        status,
        message,
        window=found.window,
        prompt_tokens=found.prompt,
        limit_only=found.limit_only,
        least=found.least,
        unverified=unverified,
    )


def read_error(body: bytes, content_type: str) -> tuple[str, str | None, str | None, str]:
    """(message, param, code, shape) of an error in any shape: OpenAI's and vLLM's envelope, `{"detail"}`,
    `{"error": "text"}`, `{"message"}`, HTML, plain text. shape: error | detail | message | html | text."""
    value = value_of(body)
    if value is None:
        return _read_text(body, content_type)
    if isinstance(value, list) and value:  # Gemini's compatible endpoint
        value = value[0]
    if not isinstance(value, dict):
        return _text(value), None, None, "text"
    value = _unwrapped(value)
    error = value.get("error")
    if isinstance(error, dict):
        error = _provider_error(error)
        message, param, code = _with_counts(error), error.get("param"), error.get("code")
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


def _unwrapped(value: dict[str, Any]) -> dict[str, Any]:
    """An error whose text is the whole body of another server's error (Ollama's are llama-server's), as that body."""
    if isinstance(said := value.get("base_resp"), dict) and "error" not in value:  # MiniMax's cloud
        return {"error": {"message": said.get("status_msg")}}
    text = value.get("error")
    if not isinstance(text, str) or text[:1] != "{" or len(text) > 4 * MESSAGE_MOST:
        return value
    inner = value_of(text.strip())
    return inner if isinstance(inner, dict) and inner.get("error") else value


def _provider_error(error: dict[str, Any]) -> dict[str, Any]:
    """OpenRouter's error with the message of the provider, which it passes on as the text of its body."""
    more = error.get("metadata")
    raw = more.get("raw") if isinstance(more, dict) else None
    if not isinstance(raw, str) or not raw or len(raw) > 4 * MESSAGE_MOST:
        return error
    inner = value_of(raw)
    if inner is None:
        return {**error, "message": raw}
    told = inner.get("error", inner) if isinstance(inner, dict) else None
    return {**error, **told} if isinstance(told, dict) else error


def _with_counts(error: dict[str, Any]) -> Any:
    """The error's message. Older builds of llama-server tell window and prompt beside a message without numbers: such a
    message is worded like that of newer ones."""
    prompt, window = error.get("n_prompt_tokens"), error.get("n_ctx")
    if error.get("type") != "exceed_context_size_error" or type(prompt) is not int or type(window) is not int:
        return error.get("message")
    return f"request ({prompt} tokens) exceeds the available context size ({window} tokens), try increasing it"


def _text(value: Any) -> str:
    return brief(value, MESSAGE_MOST)


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
