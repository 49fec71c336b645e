"""Readers of events that are slow."""

from __future__ import annotations

from typing import Any

from gateway.domain.events import QUEUE_MOST, Event, Subscription
from tests.apps.page.test_status import reading, two


def test_a_slow_reader_loses_the_oldest_and_is_told() -> None:
    told: list[Any] = []
    with Subscription(told) as subscription:
        for number in range(QUEUE_MOST + 50):
            told[0](Event(float(number), "drift", "a", ""))
        events, dropped = subscription.drain()
        assert [event.at for event in events] == [float(n) for n in range(50, QUEUE_MOST + 50)]
        assert dropped == 50
        told[0](Event(1.0, "drift", "a", ""))
        assert subscription.drain() == ([Event(1.0, "drift", "a", "")], 0)
    assert told == []


async def test_a_slow_reader_is_told_what_it_missed() -> None:
    async with two() as (gateway, _, _), reading(gateway) as reader:
        for number in range(QUEUE_MOST + 7):  # all at once: nobody can read meanwhile
            gateway.gateway.emit(Event(float(number), "drift", "a", ""))
        assert await reader.event() == ("dropped", {"dropped": 7})
        assert (await reader.event())[1]["at"] == 7.0
