"""A request that waits for slots or may have to, the slots that it is granted, and the reason if it is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.config.snapshot import Client
from gateway.domain.backend import BackendState


class QueueFull(Exception):
    """The request may not wait. `seconds`: after which a retry makes sense; None = unknown."""

    def __init__(self, why: str, seconds: float | None) -> None:
        super().__init__(why)
        self.seconds = seconds


class SlotGrant(NamedTuple):
    """Slots of one backend that a request holds: how many, since when (monotonic seconds), for which client. `key`
    names the grant among gateways; `tokens` are reserved of the memory that the backend's slots share."""

    state: BackendState
    slots: int
    since: float
    client: str
    key: str = ""
    tokens: int = 0


class Quota(NamedTuple):
    """One request and its estimated tokens, counted once against limits of a client that gateways share. `at`: when
    this gateway counted it (monotonic seconds)."""

    client: Client
    tokens: int
    at: float


@dataclass(slots=True, eq=False)
class Waiter:
    """One request that waits for slots, or may have to. `choices` are the backends that can serve it, best first; with
    `pending` none of them can yet, and all are expected back. `watches` are the backends whose changes change its plan.

    `replan` is called when a watched backend has changed. It sets `choices` and `pending`, and returns False when no
    backend is left to wait for. `wake` is called when the wait is over: slots were granted (`granted`), the deadline
    has passed (`late`), the request was refused (`refused`), or no backend is left.
    """

    client: str
    deadline: float
    wake: Callable[[], object]
    replan: Callable[[float], bool]
    choices: tuple[BackendState, ...] = ()
    watches: tuple[BackendState, ...] = ()
    weight: int = 1  # sequences
    batch: bool = False
    limit: int | None = None  # the client's `max_inflight`
    pending: bool = False
    returning: bool = False  # from a failed attempt
    place: int = 0  # number of its arrival; kept when it waits again
    turn: int = 0
    tokens: Mapping[int, int] | None = None  # id of a choice whose slots share a memory -> tokens to reserve there
    granted: SlotGrant | None = None
    late: bool = False
    # if other gateways share the slots
    key: str = ""  # under which it is registered in Redis
    ticket: tuple[int, int] = (0, 0)  # its place and turn in Redis
    quota: Quota | None = None  # not counted yet
    counted: int = 0  # the second (of Redis) in which it was counted
    full: QueueFull | None = None  # why the queue does not accept it
    refused: Exception | None = None  # why it gets no slots

    def tokens_at(self, state: BackendState) -> int:
        """The tokens to reserve of the memory that this backend's slots share; 0 = they share none."""
        return 0 if self.tokens is None else self.tokens.get(id(state), 0)
