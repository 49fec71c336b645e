"""Carries messages to one channel, in order: tried again with growing pauses, from a queue that does not grow."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass

import httpx
from tenacity import AsyncRetrying, RetryCallState, RetryError, retry_if_exception_type, stop_after_delay
from tenacity.wait import wait_random_exponential

from gateway.observe.channels import Answer, Channel, Message
from gateway.supervision import Failures

log = logging.getLogger("gateway.alerts")

QUEUE_MOST = 100  # messages that wait


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds. The pauses between tries are drawn from 0 up to `first`, 2 x `first`, ... `most`. One that a channel
    asks for is kept, up to `asked`. After `give_up` a message is dropped: by then it is history."""

    first: float = 1.0
    most: float = 60.0
    asked: float = 300.0
    give_up: float = 3600.0


class _NotTaken(Exception):
    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.said)
        self.answer = answer


class Courier:
    """One task, which runs until `close`. `dropped` counts the messages that never arrived."""

    def __init__(
        self,
        channel: Channel,
        client: httpx.AsyncClient,
        patience: Patience | None = None,
        failures: Failures | None = None,
    ) -> None:
        self.channel = channel
        self.dropped = 0
        self._client = client
        self._patience = patience or Patience()
        self._queue: deque[Message] = deque()
        self._news = asyncio.Event()
        self._failures = failures or Failures()
        self._task = self._failures.task("alerts", self._run, f"alerts to {channel.name}")

    def put(self, message: Message) -> None:
        """Never waits. Of too many the oldest goes: what is newer tells more."""
        if len(self._queue) >= QUEUE_MOST:
            self._queue.popleft()
            self.dropped += 1
            log.error("%s: %d messages wait already; the oldest is dropped", self.channel.name, QUEUE_MOST)
        self._queue.append(message)
        self._news.set()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            while self._queue:
                await self._carry(self._queue.popleft())
            self._news.clear()

    async def _carry(self, message: Message) -> None:
        retries = AsyncRetrying(
            retry=retry_if_exception_type(_NotTaken),
            wait=self._pause,
            stop=stop_after_delay(self._patience.give_up),
        )
        try:
            async for attempt in retries:
                with attempt:
                    await self._try(message, attempt.retry_state.attempt_number)
        except RetryError:
            self._lost(f"not taken within {self._patience.give_up:.0f} s")
        except Exception:
            self.dropped += 1
            self._failures.note("alerts", f"sending a message to {self.channel.name}")

    async def _try(self, message: Message, number: int) -> None:
        answer = await self.channel.send(self._client, message, time.time())
        if answer.ok:
            if number > 1:
                log.info("%s: taken at try %d", self.channel.name, number)
        elif answer.again:
            if number == 1:
                log.warning("%s: %s; it is tried again", self.channel.name, answer.said)
            raise _NotTaken(answer)
        else:
            self._lost(f"refused: {answer.said}")

    def _lost(self, why: str) -> None:
        self.dropped += 1
        log.error("%s: an alert was not delivered, %s", self.channel.name, why)

    def _pause(self, state: RetryCallState) -> float:
        """At least as long as the channel asked for, within reason."""
        grown = wait_random_exponential(multiplier=self._patience.first, max=self._patience.most)(state)
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.answer.after if isinstance(error, _NotTaken) else None
        return max(grown, min(asked or 0.0, self._patience.asked))
