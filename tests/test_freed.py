"""What a request holds is freed when it ends, and does not wait for a garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.domain.request import InferenceRequest
from gateway.inspection.reasoning import Splitter
from gateway.proxy.attempt import Attempt
from gateway.proxy.handler import RequestHandler
from simulator import SimVllm
from tests.one_backend import ask, one_backend, under_way
from tests.support import RunningGateway
from tests.waiting import turns

TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
REQUESTS: dict[str, dict[str, Any]] = {
    "a whole answer": {},
    "a stream": {"stream": True},
    "a tool call": {"tools": [TOOL], "tool_choice": "required"},
    "a streamed tool call": {"tools": [TOOL], "tool_choice": "required", "stream": True},
    "no such model": {"model": "nobody"},
    "a body that cannot be read": {"messages": 5},
}


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> dict[int, object]:
    kinds = RequestHandler, Attempt, InferenceRequest, Splitter
    return {id(one): one for one in gc.get_objects() if type(one) in kinds}


async def left(gateway: RunningGateway, before: dict[int, object]) -> list[object]:
    """What is there of the requests since, when all of them have ended."""
    await gateway.until(gateway.idle)
    await turns(20)  # the last task lets go of its exchange
    return [one for number, one in alive().items() if number not in before]


@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
async def test_nothing_of_an_answered_request_stays(asked: dict[str, Any]) -> None:
    async with one_backend(SimVllm("a"), "tool_parser: hermes") as gateway:
        await gateway.until_ready("a")
        before = alive()
        for _ in range(3):
            await ask(gateway, **asked)
        assert await left(gateway, before) == []


async def test_nothing_of_a_request_whose_client_has_left_stays() -> None:
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        await gateway.until_ready("a")
        before = alive()
        sim.fault("hang_before")
        async with under_way(gateway, sim):
            assert len(alive()) > len(before)
        assert await left(gateway, before) == []
