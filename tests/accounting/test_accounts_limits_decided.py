"""The tokens of a client with a limit, whose requests run on what was decided before."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest

from tests.proxy.house import USAGE, house, well
from tests.proxy.test_handler_decided import closes, fails
from tests.scripted import Turn


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [well, fails, closes])
async def test_the_tokens_of_a_client_with_tpm_are_counted_once(
    script: Callable[[Turn], Awaitable[None]], stream: bool
) -> None:
    async with house(client="tpm: 100000, rpm: 100") as h:
        await h.prepared(script, stream=stream)
        await h.ask(stream=stream)
        if stream:
            await h.client.until(b"[DONE]\n\n\r\n0\r\n\r\n")
        else:
            assert (await h.client.answer())[0] == 200
        await h.gateway.until(h.gateway.idle)
        (windows,) = h.gateway.gateway.services.accounts.limits._clients.values()
        now = time.monotonic()
        assert (windows[1].used(now), windows[0].used(now)) == (4 * USAGE["total_tokens"], 4)


async def test_a_client_over_its_tpm_is_refused_and_nothing_is_held() -> None:
    async with house(client="tpm: 1200") as h:
        await h.prepared(well, max_tokens=900)
        for expected in (200, 429):
            await h.ask(max_tokens=900)
            assert (await h.client.answer())[0] == expected
            h.gateway.gateway.services.accounts.limits._clients["one"][1].add(1000, time.monotonic())
        assert len(h.kept) == 1
        await h.gateway.until(h.gateway.idle)
        assert h.gateway.gateway.memory.used == 0
        assert not h.gateway.gateway.admission.scheduler._running
