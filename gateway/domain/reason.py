"""A reason in two parts: the kind, which is the gateway's text, and the backend's message, which may quote a client.

The kind is public. The backend's message is only for the client that sent the request, the log, and admins.
"""

from __future__ import annotations

from gateway.domain.upstream import ProtocolFailure, UpstreamFailure

# Kinds of failure whose text is the gateway's own.
_OURS = frozenset({"connect", "reset", "stale", "silence", "too_large"})


class Reason(str):
    """The whole text, as in the log. `kind` is the part without the backend's message."""

    __slots__ = ("kind",)
    kind: str

    def __new__(cls, text: str, kind: str) -> Reason:
        self = super().__new__(cls, text)
        self.kind = kind
        return self

    def __reduce__(self) -> tuple[type[Reason], tuple[str, str]]:
        return Reason, (str(self), self.kind)


def quoting(kind: str, message: str, between: str = ": ") -> str:
    """A reason of this kind, followed by the backend's message."""
    return Reason(f"{kind}{between}{message}", kind) if message else kind


def kind_of(reason: str) -> str:
    """The public part of a reason. A plain string contains no backend's message, so all of it is public."""
    return reason.kind if isinstance(reason, Reason) else reason


def prefixed(prefix: str, reason: str) -> str:
    """The reason with the gateway's prefix, in the whole text and in its kind."""
    return Reason(prefix + reason, prefix + reason.kind) if isinstance(reason, Reason) else prefix + reason


def joined(reasons: list[str], between: str = "; ") -> str:
    """Several reasons as one."""
    return Reason(between.join(reasons), between.join(map(kind_of, reasons)))


def reason_of(failure: UpstreamFailure, *, foreign: bool = False) -> str:
    """Why an attempt failed. `foreign`: the text comes from a library and may quote the server anywhere. In the texts
    of our own HTTP clients a quotation follows a colon."""
    text = str(failure)
    if not text:
        return failure.kind
    if foreign or isinstance(failure, ProtocolFailure):
        return quoting(failure.kind, text)
    if failure.kind in _OURS:
        return f"{failure.kind}: {text}"
    head, _, message = text.partition(": ")
    return quoting(f"{failure.kind}: {head}", message)
