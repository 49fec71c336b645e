"""Sends messages to one channel, in order, from a bounded queue; failures are retried with growing pauses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass

import httpx
from tenacity import AsyncRetrying, RetryCallState, RetryError, retry_if_exception_type, stop_after_delay
from tenacity.wait import wait_random_exponential

from gateway.apps.alerts.channels import AlertMessage, Channel, DeliveryResult
from gateway.supervision import Failures, cancel

log = logging.getLogger("gateway.alerts")

QUEUE_MOST = 100  # messages in the queue


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Seconds. The pauses between attempts are drawn from 0 up to `first`, 2 x `first`, ... `most`. A longer pause that
    the channel asks for is kept, up to `asked`. After `give_up` a message is dropped as outdated."""

    first: float = 1.0
    most: float = 60.0
    asked: float = 300.0
    give_up: float = 3600.0


class _DeliveryPostponed(Exception):
    """The channel did not accept the message, and may do so later."""

    def __init__(self, answer: DeliveryResult) -> None:
        super().__init__(answer.detail)
        self.answer = answer


class AlertSender:
    """Runs a task until `close`. `dropped` counts the messages that were not delivered."""

    def __init__(
        self,
        channel: Channel,
        client: httpx.AsyncClient,
        retries: RetryPolicy | None = None,
        failures: Failures | None = None,
    ) -> None:
        self.channel = channel
        self.dropped = 0
        self._client = client
        self._retries = retries or RetryPolicy()
        self._queue: deque[AlertMessage] = deque()
        self._filled = asyncio.Event()
        self._failures = failures or Failures()
        self._task = self._failures.task("alerts", self._run, f"alerts to {channel.name}")

    def enqueue(self, message: AlertMessage) -> None:
        """Never waits. When the queue is full the oldest message is dropped, since newer ones say more."""
        if len(self._queue) >= QUEUE_MOST:
            self._queue.popleft()
            self.dropped += 1
            log.error("%s: the queue is full (%d messages); the oldest is dropped", self.channel.name, QUEUE_MOST)
        self._queue.append(message)
        self._filled.set()

    async def close(self) -> None:
        await cancel(self._task)

    async def _run(self) -> None:
        while True:
            await self._filled.wait()
            while self._queue:
                await self._deliver(self._queue.popleft())
            self._filled.clear()

    async def _deliver(self, message: AlertMessage) -> None:
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(_DeliveryPostponed),
            wait=self._pause,
            stop=stop_after_delay(self._retries.give_up),
        )
        try:
            async for attempt in attempts:
                with attempt:
                    await self._try(message, attempt.retry_state.attempt_number)
        except RetryError:
            self._give_up(f"not accepted within {self._retries.give_up:.0f} s")
        except Exception:
            self.dropped += 1
            self._failures.note("alerts", f"sending a message to {self.channel.name}")

    async def _try(self, message: AlertMessage, number: int) -> None:
        answer = await self.channel.send(self._client, message, time.time())
        if answer.ok:
            if number > 1:
                log.info("%s: accepted at attempt %d", self.channel.name, number)
        elif answer.retry:
            if number == 1:
                log.warning("%s: %s; it is tried again", self.channel.name, answer.detail)
            raise _DeliveryPostponed(answer)
        else:
            self._give_up(f"refused: {answer.detail}")

    def _give_up(self, why: str) -> None:
        self.dropped += 1
        log.error("%s: an alert was not delivered: %s", self.channel.name, why)

    def _pause(self, state: RetryCallState) -> float:
        """Seconds until the next attempt: at least those the channel asked for, up to the policy's bound."""
        grown = wait_random_exponential(multiplier=self._retries.first, max=self._retries.most)(state)
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.answer.after if isinstance(error, _DeliveryPostponed) else None
        return max(grown, min(asked or 0.0, self._retries.asked))
