"""A reason in two parts: the kind, which the gateway words, and the backend's words, which may quote a client.

Everybody may read the kind. The backend's words are only for the client whose request it was, the log, and admins.
"""

from __future__ import annotations

from gateway.domain.upstream import ProtocolFailure, UpstreamFailure

_OURS = frozenset({"connect", "reset", "stale", "silence", "too_large"})  # kinds of failure that the gateway words


class Reason(str):
    """The whole text, as in the log. `kind` is the part without a backend's words."""

    __slots__ = ("kind",)
    kind: str

    def __new__(cls, text: str, kind: str) -> Reason:
        self = super().__new__(cls, text)
        self.kind = kind
        return self

    def __reduce__(self) -> tuple[type[Reason], tuple[str, str]]:
        return Reason, (str(self), self.kind)


def quoting(kind: str, words: str, between: str = ": ") -> str:
    """A reason of this kind, followed by a backend's words."""
    return Reason(f"{kind}{between}{words}", kind) if words else kind


def kind_of(reason: str) -> str:
    """The part of a reason that anybody may read. A plain text holds no backend's words, so all of it."""
    return reason.kind if isinstance(reason, Reason) else reason


def prefixed(prefix: str, reason: str) -> str:
    """The reason with a prefix of the gateway's, in both forms."""
    return Reason(prefix + reason, prefix + reason.kind) if isinstance(reason, Reason) else prefix + reason


def joined(reasons: list[str], between: str = "; ") -> str:
    """Several reasons as one."""
    return Reason(between.join(reasons), between.join(map(kind_of, reasons)))


def reason_of(failure: UpstreamFailure, *, foreign: bool = False) -> str:
    """Why an attempt failed. `foreign`: the text comes from a library, which quotes the server anywhere in it. In texts
    of our own HTTP clients what is quoted follows a colon."""
    text = str(failure)
    if not text:
        return failure.kind
    if foreign or isinstance(failure, ProtocolFailure):
        return quoting(failure.kind, text)
    if failure.kind in _OURS:
        return f"{failure.kind}: {text}"
    head, _, words = text.partition(": ")
    return quoting(f"{failure.kind}: {head}", words)
