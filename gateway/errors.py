"""Every error the gateway answers with: one catalogue, one envelope.

The wording is an interface for agents. The overflow text makes them compact their history, so the words that trigger
it ("context", "max_tokens", "token limit", "input token", ...) occur in no other message of ours. "not found" would
make them give up where waiting helps (docs/errors.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
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

CATALOGUE: dict[str, Code] = {
    code.name: code
    for code in (
        Code("invalid_request_body", 400, "invalid_request_error", "The body is not a JSON object with a `model`."),
        Code("malformed_request", 400, "invalid_request_error", "The bytes are no well-formed HTTP/1.1 request."),
        Code("headers_too_large", 431, "invalid_request_error", "The head has more than 64 KiB or 100 fields."),
        Code("request_timeout", 408, "invalid_request_error", "The body came at less than 1 KiB a second for 30 s."),
        Code("too_many_connections", 503, "server_error", "The listener takes no further connection; see Retry-After."),
        Code("request_too_large", 413, "invalid_request_error", "The body is larger than `server.max_body`."),
        Code("unsupported_encoding", 415, "invalid_request_error", "A request body encoding other than gzip."),
        Code("unsupported_media_type", 415, "invalid_request_error", "A request body of another type than JSON."),
        Code("model_not_found", 404, "invalid_request_error", "No alias has this name."),
        Code(
            "not_found", 404, "invalid_request_error", "No such path (nothing is ever forwarded by path), or backend."
        ),
        Code("method_not_allowed", 405, "invalid_request_error", "The path exists, with another method."),
        Code(
            "context_length_exceeded", 400, "invalid_request_error", "The prompt fits no window this request may use."
        ),
        Code("tool_choice_unsupported", 400, "invalid_request_error", "No backend of the alias can call tools."),
        Code("thinking_unsupported", 400, "invalid_request_error", "No backend of the alias can switch thinking so."),
        Code(
            "input_unsupported", 400, "invalid_request_error", "No backend of the alias takes this input or endpoint."
        ),
        Code("invalid_api_key", 401, "authentication_error", "Keys are configured and this is none of them."),
        Code("model_not_allowed", 403, "permission_error", "This client may not use this alias."),
        Code(
            "admin_only", 403, "permission_error", "Only an admin may do this; without `clients`, this machine alone."
        ),
        Code("foreign_origin", 403, "permission_error", "A page of another site asked."),
        Code("foreign_host", 403, "permission_error", "The gateway was asked by a name that it does not have."),
        Code("rate_limit_exceeded", 429, "rate_limit_error", "A client's or a backend's limit; see Retry-After."),
        Code("queue_full", 429, "rate_limit_error", "Too many requests already wait; see Retry-After."),
        Code("queue_timeout", 429, "rate_limit_error", "Waited `queue.max_wait` without a slot; see Retry-After."),
        Code("backend_warming", 429, "rate_limit_error", "A backend is starting or has just gone; see Retry-After."),
        Code("budget_exceeded", 402, "billing_error", "Only a cloud budget stands in the way."),
        Code(
            "no_backend_available", 503, "server_error", "No backend of the alias can serve, and none will by itself."
        ),
        Code("memory_full", 503, "server_error", "`server.memory` is used up; see Retry-After."),
        Code(
            "resources_exhausted",
            503,
            "server_error",
            "The gateway itself is short of files, memory, ports, threads, disk.",
        ),
        Code("upstream_error", 502, "server_error", "Every backend that was tried failed."),
        Code("upstream_timeout", 504, "server_error", "The last backend that was tried stayed silent too long."),
        Code("request_cancelled", 499, "invalid_request_error", "An admin has ended this request; do not repeat it."),
        Code("stream_interrupted", 500, "server_error", "In a stream only: it broke after content had been sent."),
        Code("invalid_config", 409, "invalid_request_error", "routes.yaml is not valid: of `/admin/reload` only."),
        Code("operation_running", 409, "invalid_request_error", "Of `/admin`: another operation is under way."),
        Code(
            "operation_refused", 409, "invalid_request_error", "Of `/admin`: it does not fit, or a command is missing."
        ),
        Code("internal_error", 500, "server_error", "A defect in the gateway; the log has the traceback."),
    )
}

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
