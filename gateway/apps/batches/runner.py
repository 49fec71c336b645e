"""Runs the lines of batches on the gateway's own backends, behind everything interactive.

A line is a request of its client like any other, at `batch` priority: the same plan, slots, checks, mending, limits and
log. What may succeed later is asked again until the batch expires; every other answer is the line's result.

Where several gateways share the store, each runs the lines that it has leased there. While the store is away, or its
disk full, what runs goes on, its results wait, and nothing new begins.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from gateway.admission.access import Identity, find_alias
from gateway.admission.memory import Share
from gateway.apps.batches.lanes import BatchProgress, Lanes, lines_at_a_time
from gateway.apps.batches.lines import URLS, LineError, answered_row, failed_row, read_line
from gateway.apps.batches.records import KINDS, RUNNING, BatchRecord, LineRecord, Status
from gateway.apps.batches.store import (
    AWAY,
    KEPT_MOST,
    BatchGone,
    BatchStore,
    StoreAway,
    StoreFull,
    StoreThreads,
    pause_of,
)
from gateway.config.snapshot import OPEN
from gateway.errors import GatewayError
from gateway.large_bodies import LARGE, apart
from gateway.proxy.exchange import running_task
from gateway.proxy.inner_exchange import InnerExchange, OnBehalf
from gateway.runtime.gateway import Gateway
from gateway.supervision import cancel

log = logging.getLogger("gateway.apps.batches")

WINDOW = 256  # lines of one batch that wait or run
AT_ONCE = 16  # lines that are taken at a time; so many more than run here may wait here
LOOK = 1.0  # seconds between two looks at what other gateways have done
TRIES_MOST = 5  # of a line whose answers are failures of backends
PAUSE_MOST = 60.0  # seconds until a line is tried again
CANCELLED = 499  # the status of a request that an admin has ended
NO_ROOM = -1.0  # instead of seconds: the client keeps too much by now
CUT = 0  # the status of an answer that did not come to its end
_LATER = (402, 429, 503)  # another time the answer is another one: a budget, a limit, nobody there
_FAILURES = (CUT, 408, 500, 502, 504)


def pause_after(status: int, retry_after: bytes | None, tries: int) -> float | None:
    """Seconds until a line with this answer is tried again; None = the answer is its result. `tries` so far. Pure."""
    if status not in _LATER and (status not in _FAILURES or tries >= TRIES_MOST):
        return None
    backoff = 2.0 ** min(tries - 1, 10)
    asked = float(retry_after) if retry_after is not None and retry_after.isdigit() and len(retry_after) < 6 else 0.0
    return min(max(asked, backoff), PAUSE_MOST)


class Unserved(Exception):
    """The batch cannot go on at all."""


class Answer(NamedTuple):
    status: int  # of HTTP, or CUT
    fields: dict[bytes, bytes]
    body: bytes


class BatchOwner(NamedTuple):
    """The client of a batch, as the one that memory is charged to."""

    sender: str


class BatchRun:
    """One batch under way. `record` is as it was after the latest result. `over` is set when its lines are to end: it
    was cancelled, or another gateway has ended it."""

    def __init__(self, record: BatchRecord) -> None:
        self.record = record
        self.progress = BatchProgress()
        self.over = asyncio.Event()
        self.stopping = False  # no line is asked any more
        self.waits = ""  # why the store takes no results now
        self.hold = "" if record.schedule is None else "It waits for its schedule."  # why no line may begin now
        self.paused: dict[asyncio.Task[Any], Answer] = {}  # the lines that are asked again, and why
        self.room = 1  # bytes that its client may keep besides, as of `room_at`
        self.room_at = float("-inf")
        self.lines: dict[asyncio.Task[None], int] = {}  # those that wait or run -> their numbers
        self.waiting: Counter[str] = Counter()  # alias -> lines that wait for a place in its lane
        self.asking: dict[asyncio.Task[Any], InnerExchange] = {}  # the lines whose request is under way

    @property
    def wants_more(self) -> bool:
        """Could further lines begin? Yes where none waits, for one of the aliases that lines have named so far."""
        return len(self.lines) < WINDOW and (not self.waiting or 0 in self.waiting.values())

    def follow(self, record: BatchRecord) -> None:
        """The batch as the store has it."""
        self.record = record
        self.progress.note(record.done, time.monotonic())
        if record.status not in ("validating", "in_progress"):
            self.over.set()

    async def stop_lines(self) -> None:
        """End what is under way. A line that has no result runs again when the batch goes on."""
        self.stopping = True
        for task in self.lines:
            if (exchange := self.asking.get(task)) is not None:
                exchange.leave()  # as if its client had left: everything is released and counted
            else:
                task.cancel()
        await asyncio.gather(*self.lines, return_exceptions=True)
        self.lines.clear()
        self.paused.clear()


class BatchRunner:
    """`store` is used in `threads` only."""

    def __init__(self, store: BatchStore, threads: StoreThreads, gateway: Gateway) -> None:
        self._store = store
        self._threads = threads
        self._services = gateway.services
        self._memory = gateway.memory
        self._handle = gateway.handle
        self._lanes = Lanes(self._limit)
        self._unkept = 0  # results that the store has not taken

    def _limit(self, alias: str) -> int:
        found = self._services.snapshot.aliases.get(alias)
        return 1 if found is None else lines_at_a_time(found, self._services.fleet.states, time.monotonic())

    # -- one batch ------------------------------------------------------------------------------------------------

    async def run(self, run: BatchRun) -> None:
        """Take the batch from where it is to its end. Cancelled = the gateway stops: the batch goes on later. Run once
        more after it has failed inside the gateway."""
        run.stopping = False
        try:
            while run.record.unfinished:
                before = run.record.status
                await self._go_on(run)
                if run.record.status == before:  # another gateway does this step
                    await asyncio.sleep(LOOK)
        except BatchGone:
            log.warning("the store has lost %s", run.record.id)
        except Unserved as reason:
            log.warning("%s is left to other gateways: %s", run.record.id, reason)
            await self._threads.run(self._store.release, run.record.id)

    async def _go_on(self, run: BatchRun) -> None:
        """One step: validate, run the lines, or write the files."""
        store, record = self._store, run.record
        if record.status == "validating":
            server = self._services.snapshot.server
            most = server.max_body, server.max_file * KEPT_MOST
            run.record = await self._threads.in_steps(lambda: store.index(record, *most, now()))
        elif record.status == "finalizing":
            run.record = await self._threads.in_steps(lambda: store.finalize(record, now()))
        else:
            run.follow(record)
            ending, errors = await self._run_lines(run)
            changes = {"ending": ending, "errors": errors}
            run.record = await self._threads.patiently(store.move, record.id, RUNNING, "finalizing", now(), **changes)

    async def _run_lines(self, run: BatchRun) -> tuple[Status, list[dict[str, Any]]]:
        """Run the lines that have no result. Returns how the batch ends, and why if it failed. Raises Unserved where
        other gateways may know its client."""
        lines = asyncio.create_task(self._all_lines(run), name=f"lines of {run.record.id}")
        over = asyncio.create_task(run.over.wait())
        try:
            left = max(0.0, run.record.expires_at - time.time())
            done, _ = await asyncio.wait((lines, over), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if over in done:
                return "cancelled", []
            if lines not in done:
                return "expired", []
            lines.result()
            return "completed", []
        except Unserved as reason:
            if self._store.shared:
                raise
            return "failed", [{"code": "client_removed", "message": str(reason), "param": None, "line": None}]
        finally:
            over.cancel()
            await cancel(lines)
            await run.stop_lines()

    async def _all_lines(self, run: BatchRun) -> None:
        after = -1
        while True:
            await self._look_at_room(run)
            while run.wants_more and not run.hold:
                taken = await self._take(run, after)
                if not taken:
                    break
                after = taken[-1].number
                for line in taken:
                    name = f"{run.record.id} line {line.number}"
                    run.lines[asyncio.create_task(self._one_line(run, line), name=name)] = line.number
                await asyncio.sleep(0)  # they come to their lanes
            if run.lines:
                done, _ = await asyncio.wait(run.lines, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del run.lines[task]
                    task.result()
            elif not run.hold and await self._all_done(run):
                return
            else:
                await asyncio.sleep(LOOK)

    async def _take(self, run: BatchRun, after: int) -> list[LineRecord]:
        most = min(AT_ONCE, WINDOW - len(run.lines))
        return await self._threads.patiently(self._store.take, run.record.id, after, most, tuple(run.lines.values()))

    async def _all_done(self, run: BatchRun) -> bool:
        """Has every line a result? Asked when none is left for this gateway; others may have some under way."""
        if not self._store.shared:
            return True
        record = await self._threads.patiently(self._store.batch, run.record.id)
        if record is None:
            raise BatchGone
        run.follow(record)
        return record.done >= record.total

    async def _one_line(self, run: BatchRun, line: LineRecord) -> None:
        """Ask until there is a result, and commit that."""
        tries, task = 0, running_task()
        while not run.stopping:
            with closing(Share(self._memory, BatchOwner(run.record.owner))) as kept:
                pause = await self._try(run, line, tries + 1, kept)
            if pause is None:
                return
            tries += pause != NO_ROOM
            if not run.stopping:
                await asyncio.sleep(max(pause, 0.0))
                run.paused.pop(task, None)

    async def _try(self, run: BatchRun, line: LineRecord, tries: int, kept: Share) -> float | None:
        """Ask once, and commit what is a result. Returns the seconds until it is asked again, or NO_ROOM; None where
        there is a result. `kept` counts the answer, until the store has it."""
        batch = run.record.id
        try:
            alias = self._on_behalf(run.record.owner, line.model).alias.name
            await self._until_room(run)
            async with self._place(run, alias):
                if run.room <= 0:
                    return NO_ROOM
                answer = await self._ask(run, line, kept)
        except GatewayError as error:  # nobody serves this model, or there is no memory
            answer = Answer(error.status, {}, error.envelope())
        except LineError as error:  # the input was changed on disk
            row = failed_row(batch, line.number, line.custom_id, error.code, error.message)
            await self._commit(run, line, row, ok=False)
            return None
        pause = pause_after(answer.status, answer.fields.get(b"retry-after"), tries)
        if pause is not None or (run.stopping and answer.status == CUT):
            run.paused[running_task()] = answer
            return pause or 0.0
        name = answer.fields.get(b"x-request-id", b"").decode("latin-1")
        result = batch, line.number, line.custom_id, answer.status or 502, name, answer.body
        large = len(answer.body) > LARGE
        row = await apart(run.record.owner, partial(answered_row, *result)) if large else answered_row(*result)
        await self._commit(run, line, row, ok=None if answer.status == CANCELLED else answer.status == 200)
        return None

    async def _look_at_room(self, run: BatchRun) -> None:
        """What the client of the batch may keep besides; others of its batches use it up too."""
        if time.monotonic() - run.room_at > LOOK:
            used = await self._threads.patiently(self._store.usage, run.record.owner)
            run.room = self._services.snapshot.server.max_file * KEPT_MOST - used.bytes
            run.room_at = time.monotonic()

    async def _until_room(self, run: BatchRun) -> None:
        while not run.stopping and run.hold:
            await asyncio.sleep(LOOK)
        while not run.stopping and run.room <= 0:
            if not run.waits:
                run.waits = f"Its client's files and results have {KEPT_MOST} x `server.max_file`: delete some files."
                log.warning("%s of client %s waits: %s", run.record.id, run.record.owner, run.waits)
            await asyncio.sleep(pause_of(StoreFull(run.waits)))
        run.waits = ""

    @asynccontextmanager
    async def _place(self, run: BatchRun, alias: str) -> AsyncIterator[None]:
        """Wait for a place in the lane of this alias, and hold it."""
        waits = True
        run.waiting[alias] += 1
        try:
            async with self._lanes.one_of(alias):
                run.waiting[alias] -= 1
                waits = False
                yield
        finally:
            run.waiting[alias] -= waits

    async def _ask(self, run: BatchRun, line: LineRecord, kept: Share) -> Answer:
        """Raises LineError, `memory_full`, and as `_on_behalf`."""
        record, task = run.record, running_task()
        while self._unkept:  # an answer that cannot be kept would have to be asked for again
            await asyncio.sleep(AWAY)
        kept.add(line.size)
        body = read_line(await self._threads.patiently(self._store.read, record, line), record.endpoint).body
        kept.release(line.size)  # from here on the request counts its body
        on_behalf = self._on_behalf(record.owner, line.model)  # as routes.yaml is now, after all waits
        name = f"{record.id}-{line.number}".encode()
        headers = {b"content-type": b"application/json", b"x-request-id": name}
        exchange = InnerExchange(headers, "batch", body, kept.sibling(), kept, record.privacy)
        run.asking[task] = exchange
        try:
            await self._handle(URLS[record.endpoint], exchange, on_behalf)
            return Answer(exchange.status if exchange.complete else CUT, exchange.fields, bytes(exchange.body))
        finally:
            del run.asking[task]

    async def _commit(self, run: BatchRun, line: LineRecord, row: bytes, *, ok: bool | None) -> None:
        waits = False
        try:
            while True:
                try:
                    record = await self._threads.run(self._store.add_result, run.record.id, line.number, row, ok=ok)
                    break
                except StoreAway as error:
                    if run.stopping:
                        return  # it has no result, and runs again when the batch goes on
                    self._unkept += not waits
                    waits = True
                    run.waits = str(error)
                    await asyncio.sleep(pause_of(error))
        finally:
            self._unkept -= waits
        run.follow(record)
        run.waits = ""
        run.room -= len(row)
        self._services.metrics.batch_lines.inc(KINDS[ok][0])

    def knows(self, owner: str) -> bool:
        """Is this a client in routes.yaml?"""
        clients = self._services.snapshot.clients_by_owner
        return owner in clients if clients else owner == OPEN

    def _on_behalf(self, owner: str, model: str) -> OnBehalf:
        """Raises `model_not_found`, `model_not_allowed`, and Unserved when the client is gone."""
        snapshot = self._services.snapshot
        client = snapshot.clients_by_owner.get(owner)
        if not self.knows(owner):
            raise Unserved(f"Client '{owner}' is not in routes.yaml any more.")
        behind = replace(client, priority="batch") if client is not None else None
        identity = Identity(owner if client is None else client.name, owner, behind)
        return OnBehalf(identity, replace(find_alias(snapshot, identity, model), priority="batch"))


def now() -> int:
    """Whole Unix seconds."""
    return int(time.time())
