"""A reason in two parts: the kind, which is ours, and a backend's own words, which may repeat what one client sent.

Whoever else asks may read the kind. The words are for the client they were said to, for the log, and for admins.
"""

from __future__ import annotations

from gateway.domain.upstream import ProtocolFailure, UpstreamFailure

_OURS = frozenset({"connect", "reset", "stale", "silence", "too_large"})  # kinds of failure that our clients word


class Reason(str):
    """The whole text, as the log has it. `kind` is the part without a backend's words."""

    __slots__ = ("kind",)
    kind: str

    def __new__(cls, text: str, kind: str) -> Reason:
        self = super().__new__(cls, text)
        self.kind = kind
        return self

    def __reduce__(self) -> tuple[type[Reason], tuple[str, str]]:
        return Reason, (str(self), self.kind)


def quoting(kind: str, words: str, between: str = ": ") -> str:
    """A reason of this kind with a backend's words behind it."""
    return Reason(f"{kind}{between}{words}", kind) if words else kind


def kind_of(reason: str) -> str:
    """What anybody may read of it. A plain text is all ours."""
    return reason.kind if isinstance(reason, Reason) else reason


def suffixed(reason: str, suffix: str) -> str:
    """With something of ours behind it, in both forms."""
    return Reason(reason + suffix, reason.kind + suffix) if isinstance(reason, Reason) else reason + suffix


def prefixed(prefix: str, reason: str) -> str:
    """With something of ours before it, in both forms."""
    return Reason(prefix + reason, prefix + reason.kind) if isinstance(reason, Reason) else prefix + reason


def joined(reasons: list[str], between: str = "; ") -> str:
    """Several as one."""
    return Reason(between.join(reasons), between.join(map(kind_of, reasons)))


def reason_of(failure: UpstreamFailure, *, foreign: bool = False) -> str:
    """Why an attempt failed. `foreign`: the text is not of our own clients but of a library, which quotes the server.
    What a failure of ours quotes stands behind a colon."""
    text = str(failure)
    if not text:
        return failure.kind
    if foreign or isinstance(failure, ProtocolFailure):
        return quoting(failure.kind, text)
    if failure.kind in _OURS:
        return f"{failure.kind}: {text}"
    head, _, words = text.partition(": ")
    return quoting(f"{failure.kind}: {head}", words)
