"""Decides whether a request or a backend is to blame for failed attempts. Pure, with time passed in.

Real servers answer some bodies with a 5xx every time: a broken conversation, a prompt that a forced format cannot
hold. Such a body would make one backend after the other count as failed, for all clients. So a failure that the
request may have caused is not counted against the backend at first. If the same body fails on a second backend, or
twice on one, while one of them answers other requests, the body is the culprit and the request ends. If those
backends answer no other request either, the backends are to blame.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, NamedTuple

from gateway.domain.request import InferenceRequest

KEPT = 600.0  # seconds that a culprit is remembered after it last failed
MOST = 1000  # culprits that are remembered
SHUNNED_LEAST, SHUNNED_MOST = 60.0, 600.0  # seconds in which a body is not sent again after backends died of it

Fault = Literal["open", "request", "backends"]

_HOW_IT_IS_SENT = frozenset({"model", "stream", "stream_options"})  # fields that do not make a body a different one


class Failure(NamedTuple):
    """One failed attempt. `lives`: whether the backend has answered other requests since; None if unknown. `broke`:
    the backend ran no other request, and its port has been closed since."""

    backend: str
    lives: bool | None = None
    broke: bool = False


def fault_of(failures: Sequence[Failure], *, known: bool = False) -> Fault:
    """Whose fault these failures of one body are. `known`: the body was a culprit before."""
    if not failures:
        return "open"
    if known:
        return "request"
    if len(failures) < 2:
        return "open"
    if any(failure.lives for failure in failures) or has_broken_them(failures):
        return "request"
    return "backends"


def has_broken_them(failures: Sequence[Failure]) -> bool:
    """True if two backends died of this body."""
    return len({failure.backend for failure in failures if failure.broke}) >= 2


@dataclass(slots=True)
class Culprit:
    """A body that has failed, with its `failures` so far. `proven`: they are its own fault. `until`: when the body
    is forgotten. `shunned_until`: until then it is sent to no backend."""

    prompt_bytes: int
    until: float = 0.0
    failures: tuple[Failure, ...] = ()
    proven: bool = False
    shunned_until: float = 0.0
    shunned_for: float = 0.0


class Culprits:
    """The bodies that failed lately, by key. When there are too many, the one whose last failure is oldest is
    forgotten first."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Culprit] = OrderedDict()
        self.sizes: frozenset[int] = frozenset()  # of the known prompts: bodies of other sizes are not hashed

    def __len__(self) -> int:
        return len(self._known)

    def find(self, request: InferenceRequest, alias: str, client: str, now: float) -> Culprit | None:
        """The record of this body, sent by this client to this alias."""
        if request.prompt_bytes not in self.sizes:
            return None
        found = self._known.get(key_of(request, alias, client))
        return found if found is not None and found.until > now else None

    def suspect(self, key: bytes, prompt_bytes: int, failures: Sequence[Failure], now: float) -> None:
        """The body failed, and the cause is not known yet."""
        self._entry(key, prompt_bytes, now).failures = tuple(failures)

    def convict(self, key: bytes, prompt_bytes: int, now: float, *, broke: bool) -> None:
        """The body is to blame for its failures. `broke`: backends died of it."""
        culprit = self._entry(key, prompt_bytes, now)
        culprit.proven = True
        if broke:
            culprit.shunned_for = min(SHUNNED_MOST, max(SHUNNED_LEAST, culprit.shunned_for * 2))
            culprit.shunned_until = now + culprit.shunned_for
            culprit.until = culprit.shunned_until + KEPT

    def _entry(self, key: bytes, prompt_bytes: int, now: float) -> Culprit:
        culprit = self._known.pop(key, None) or Culprit(prompt_bytes)
        self._known[key] = culprit  # the latest last
        culprit.until = now + KEPT
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        self.sizes = frozenset(c.prompt_bytes for c in self._known.values())
        return culprit

    def acquit(self, key: bytes) -> None:
        """The body was answered after all: forget its failures."""
        if self._known.pop(key, None) is None:
            return
        self.sizes = frozenset(c.prompt_bytes for c in self._known.values())


def key_of(request: InferenceRequest, alias: str, client: str) -> bytes:
    """The same for the same body of the same client, streamed or not."""
    digest = blake2b(digest_size=16)
    for part in (alias, client, request.endpoint.name):
        digest.update(part.encode(errors="replace") + b"\0")
    for name in sorted(request.fields.keys() - _HOW_IT_IS_SENT):
        digest.update(name.encode(errors="replace") + b"\0")
        digest.update(bytes(request.fields[name]) + b"\0")
    return digest.digest()
