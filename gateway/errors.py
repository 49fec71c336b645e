"""Every error the gateway answers with: one catalogue (errors.toml), one envelope.

The wording is an interface for agents. The overflow text makes them compact their history, so the words that trigger
it ("context", "max_tokens", "token limit", "input token", ...) occur in no other message of ours. "not found" would
make them give up where waiting helps (docs/errors.md).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

import msgspec

from gateway.shortage import WORDS, Kind


@dataclass(frozen=True, slots=True)
class Code:
    """One row of the catalogue. `status` is the HTTP status, `type` OpenAI's error type."""

    name: str
    status: int
    type: str
    meaning: str


E = TypeVar("E", bound=BaseException)
_ROWS = tomllib.loads(Path(__file__).with_name("errors.toml").read_text(encoding="utf-8"))
CATALOGUE = {name: Code(name, *row) for name, row in _ROWS.items()}

NAME_MOST = 200  # characters of a model's name in a message; the search for similar names would take too long with more
# Hermes retries a tool call cleanly on exactly these words (docs/errors.md).
STREAM_INTERRUPTED = "upstream connect error: backend reset"
# After these Hermes does not use a key for 5 minutes (401) or an hour, and sends requests without one, so one forbidden
# alias makes all others fail. `Retry-After` shortens that time.
_KEY_IS_PUT_ASIDE = (401, 402, 403)


class GatewayError(Exception):
    """An error response to the client. `code` is a name of `CATALOGUE`; `retry_after` is in seconds."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.status = status or CATALOGUE[code].status
        self.retry_after = 1.0 if retry_after is None and self.status in _KEY_IS_PUT_ASIDE else retry_after
        self.type = CATALOGUE[code].type

    def envelope(self) -> bytes:
        return envelope(self.message, self.type, self.param, self.code)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """`Retry-After` in whole seconds, 1 to 600: the range that agents honour."""
        if self.retry_after is None:
            return []
        return [(b"retry-after", str(max(1, min(600, round(self.retry_after)))).encode())]


class WrongMethod(GatewayError):
    """The path exists and takes only the methods `allow`. `upgrade`: another protocol is asked for; clients that get a
    426 go on with HTTP at once."""

    def __init__(self, path: str, method: str, allow: str, *, upgrade: bool = False) -> None:
        message = f"{path} does not take {method}: it takes {allow}."
        super().__init__("method_not_allowed", message, status=426 if upgrade else None)
        self.allow = allow

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"allow", self.allow.encode()), *super().headers()]


class PassedOn(GatewayError):
    """A backend's own 4xx that concerns the client: its status and message in our envelope."""

    def __init__(self, status: int, message: str, param: str | None, code: str | None) -> None:
        super().__init__("invalid_request_body", message, param=param, status=status)
        self.upstream_code = code

    def envelope(self) -> bytes:
        return envelope(self.message, self.type, self.param, self.upstream_code)


def envelope(message: str, type_: str, param: str | None, code: str | None) -> bytes:
    """OpenAI's error body."""
    return msgspec.json.encode({"error": {"message": message, "type": type_, "param": param, "code": code}})


def model_not_found(model: str, known: list[str]) -> GatewayError:
    """The error for an unknown model. Both large agents stop with the right message on exactly these first words."""
    shown = model if len(model) <= NAME_MOST else model[:NAME_MOST] + "..."
    message = f"The model '{shown}' does not exist"
    folded = {name.lower(): name for name in known}
    close = get_close_matches(model.lower(), folded, n=1, cutoff=0.6) if shown is model else ()
    if close:
        message += f". Did you mean '{folded[close[0]]}'?"
    return GatewayError("model_not_found", message, param="model")


def exhausted(kind: Kind) -> GatewayError:
    """The error when the gateway itself lacks `kind`: no backend is to blame, and another one would not help."""
    message = f"The gateway itself is short of {WORDS[kind]}; send the request again."
    return GatewayError("resources_exhausted", message, retry_after=2)


def context_length_exceeded(window: int, tokens: int) -> GatewayError:
    """The overflow error, in the one wording that Hermes and OpenClaw recognise as "compact and try again". `window`
    0 = no backend has reported it; then the message has no number."""
    largest = f"{window} tokens" if window else "not known"
    return GatewayError(
        "context_length_exceeded",
        f"This model's maximum context length is {largest}. However, your prompt contains {tokens} input tokens. "
        "Please reduce the length of the messages.",
        param="messages",
    )


def fresh(kept: E) -> E:
    """A copy of `kept` to raise. An error that is raised leads, by its traceback, to the frames that it passes and to
    what they hold: bodies too. If one of these keeps the error, only a garbage collection would free them all."""
    copy = type(kept).__new__(type(kept), *kept.args)
    copy.__dict__.update(kept.__dict__)
    copy.__cause__ = kept.__cause__
    return copy
