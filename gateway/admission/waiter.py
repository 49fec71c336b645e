"""One request that waits, or may have to, and what it gets: slots, or why it gets none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from gateway.config.snapshot import Client
from gateway.domain.backend import BackendState


class QueueFull(Exception):
    """It may not even wait. `seconds` until asking again makes sense, None = nothing is known yet."""

    def __init__(self, why: str, seconds: float | None) -> None:
        super().__init__(why)
        self.seconds = seconds


class Held(NamedTuple):
    """Slots of one backend that are taken, since when, for whom. `key`: their name among gateways."""

    state: BackendState
    slots: int
    since: float
    client: str
    key: str = ""


class Quota(NamedTuple):
    """What counts once against the limits of a client that gateways share: a request and its probable tokens. `at`:
    when it was counted here."""

    client: Client
    tokens: int
    at: float


@dataclass(slots=True, eq=False)
class Waiter:
    """One request that waits, or may have to. `choices` are the backends that it takes, best first; with `pending` it
    takes none of them yet: they are expected to be there later. `watches`: whose changes make its plan another.

    `replan` is called when a watched backend has changed: it sets `choices` and `pending` anew, and False means that
    there is nothing left to wait for. `wake` is called when it does not wait any more: it has got its slots
    (`granted`), its time is up (`late`), or neither: nothing is left.
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
    granted: Held | None = None
    late: bool = False
    # where other gateways decide with us
    key: str = ""  # under which it waits there
    ticket: tuple[int, int] = (0, 0)  # its place and turn there
    quota: Quota | None = None  # not counted yet
    counted: int = 0  # the second there in which it was
    full: QueueFull | None = None  # why it may not wait
    refused: Exception | None = None  # it gets nothing, for this reason
