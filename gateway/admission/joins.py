"""Requests that a repeat of them may join, and the answers that are kept for a repeat that comes later.

Both are found by a key that says everything in which two requests may differ (proxy/joining.py). Of the requests with
one key only one runs: the others wait for its answer, and when it fails the one that has waited longest runs in its
place. A request that runs goes on for a while when its client leaves, because a repeat may come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.admission.memory import Memory, Share

KEPT = 60.0  # seconds that an answer is kept after its end
ALONE = 60.0  # seconds that a request goes on without a client that waits for it
MOST = 64 * 1024 * 1024  # bytes of kept answers; less where `server.memory` is small
PART = 16  # kept answers take this part of `server.memory` at most
OF_ONE_CLIENT = 4  # and those of one client this part of that; one answer this part of the client's
OVERHEAD = 1024  # bytes that are counted for a kept answer beside its body


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer of status 200. `id`: the request that got it. `headers`: without its request id. `share`: its
    bytes count against `server.memory` until nobody holds the answer."""

    id: str
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    share: Share


@dataclass(frozen=True, slots=True)
class _Kept:
    answer: Answer
    owner: str
    until: float


class KeptAnswers:
    """The latest answers, oldest first; the oldest are dropped for the new. Time is passed in, in seconds."""

    def __init__(self, limit: int | None) -> None:
        self.most = MOST if limit is None else min(MOST, limit // PART)
        self.most_of_client = self.most // OF_ONE_CLIENT
        self.most_of_answer = self.most_of_client // OF_ONE_CLIENT
        self._answers: dict[bytes, _Kept] = {}
        self._held: dict[str, int] = {}  # owner -> bytes
        self.size = 0  # of all of them

    def __len__(self) -> int:
        return len(self._answers)

    def keep(self, key: bytes, answer: Answer, owner: str, now: float) -> None:
        """Keep an answer, unless it is too big."""
        size = answer.share.size
        if size > self.most_of_answer:
            return
        self.expire(now)
        self._drop(key)
        while self._held.get(owner, 0) + size > self.most_of_client:
            self._drop(next(key for key, kept in self._answers.items() if kept.owner == owner))
        while self.size + size > self.most:
            self._drop(next(iter(self._answers)))
        self._answers[key] = _Kept(answer, owner, now + KEPT)
        self._held[owner] = self._held.get(owner, 0) + size
        self.size += size

    def find(self, key: bytes, now: float) -> Answer | None:
        kept = self._answers.get(key)
        return kept.answer if kept is not None and now < kept.until else None

    def expire(self, now: float) -> float | None:
        """Drop what is too old. Returns when the next one will be; None = none is left."""
        while self._answers:
            key, kept = next(iter(self._answers.items()))
            if now < kept.until:
                return kept.until
            self._drop(key)
        return None

    def clear(self) -> None:
        self._answers.clear()
        self._held.clear()
        self.size = 0

    def _drop(self, key: bytes) -> None:
        kept = self._answers.pop(key, None)
        if kept is None:
            return
        size = kept.answer.share.size
        self.size -= size
        self._held[kept.owner] -= size
        if not self._held[kept.owner]:
            del self._held[kept.owner]


class Joins:
    """Of one gateway. When `memory` is full, kept answers are dropped before a request is refused."""

    def __init__(self, memory: Memory) -> None:
        self.kept = KeptAnswers(memory.limit)
        self.running: dict[bytes, Running] = {}
        self.stopping = False
        self._memory = memory
        self._expiry: asyncio.TimerHandle | None = None
        memory.drop_kept = self.kept.clear

    def find(self, key: bytes) -> Answer | Running | None:
        """The answer to this key, else the request that runs for it."""
        return self.running.get(key) or self.kept.find(key, asyncio.get_running_loop().time())

    def run(self, key: bytes, owner: str, request_id: str, end: Callable[[], None]) -> Running:
        """The request `request_id` of the client `owner` runs, and repeats may join it. `end` ends it."""
        running = self.running[key] = Running(self, key, owner)
        running.lead(request_id, end)
        return running

    def keep(self, running: Running, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> Answer | None:
        """None = there is no memory for it."""
        size = len(body) + OVERHEAD
        if not self._memory.has_room(size):
            return None
        share = Share(self._memory)
        share.add(size)
        answer = Answer(running.request_id, headers, body, share)
        if not self.stopping:
            self.kept.keep(running.key, answer, running.owner, asyncio.get_running_loop().time())
            if self._expiry is None:
                self._expire()
        return answer

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        due = self.kept.expire(loop.time())
        self._expiry = loop.call_at(due, self._expire) if due is not None else None

    def stop(self) -> None:
        """The gateway stops: no repeat will come. What runs for nobody is ended, and no answer is kept."""
        self.stopping = True
        self.kept.clear()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        for running in list(self.running.values()):
            running.end_if_alone()


class Running:
    """The requests with one key: one runs, the others wait for its answer. `request_id`: the one that runs."""

    def __init__(self, joins: Joins, key: bytes, owner: str) -> None:
        self.key = key
        self.owner = owner
        self.request_id = ""
        self._joins = joins
        self._end: Callable[[], None] | None = None
        self._waiting: deque[asyncio.Future[Answer | None]] = deque()  # None = run in the place of the one that failed
        self._left = False  # the client of the one that runs
        self._answered = False
        self._alone: asyncio.TimerHandle | None = None

    # -- the one that runs ----------------------------------------------------------------------------------------

    def lead(self, request_id: str, end: Callable[[], None]) -> None:
        """From now on this request is the one that runs."""
        self.request_id, self._end = request_id, end

    def client_left(self) -> bool:
        """The client of the one that runs has left. Returns whether the request goes on."""
        if self._answered or self._joins.stopping:
            return False
        self._left = True
        self._watch()
        return True

    def answered(self, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """It has an answer of status 200: keep it, and give it to those that wait."""
        answer = self._joins.keep(self, headers, body)
        if answer is None:
            return  # `close` lets the next one run
        self._answered = True
        del self._joins.running[self.key]
        self._watch()
        for waiting in self._waiting:
            waiting.set_result(answer)
        self._waiting.clear()

    def close(self) -> bool:
        """It has ended: if it has no answer, the next one runs. Returns whether its client had left."""
        left, self._left, self._end = self._left, False, None
        self._watch()
        if not self._answered:
            self._pass_on()
        return left

    def end_if_alone(self) -> None:
        """End the request unless a client waits for its answer."""
        if self._left and not self._waiting and self._end is not None:
            self._end()

    def _watch(self) -> None:
        """Begin or end the time in which nobody waits for the answer."""
        if self._alone is not None:
            self._alone.cancel()
            self._alone = None
        if self._left and not self._waiting and not self._answered:
            wait = 0.0 if self._joins.stopping else ALONE
            self._alone = asyncio.get_running_loop().call_later(wait, self.end_if_alone)

    # -- those that wait ------------------------------------------------------------------------------------------

    async def join(self) -> Answer | None:
        """The answer of the one that runs; None = it failed, and the caller runs in its place: it calls `lead`, and
        `close` at its end."""
        waiting: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._watch()
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                self._watch()
            elif waiting.done() and not waiting.cancelled() and waiting.result() is None:
                self._pass_on()  # it was to run, and has left
            raise

    def _pass_on(self) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self._joins.running.pop(self.key, None)
