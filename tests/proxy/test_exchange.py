"""A client that leaves in the moment in which its backend is silent for too long."""

from __future__ import annotations

import asyncio

from gateway.domain.request_timer import Pulse, RequestTimer, Stopping
from gateway.domain.upstream import SilenceFailure
from gateway.proxy.exchange import ClientGone


async def test_the_leaving_of_a_client_counts_for_more_than_a_silence_told_in_the_same_moment() -> None:
    """Else the next backend would be asked for a client that is gone, and nobody would say so again."""

    async def interrupted(*reasons: BaseException) -> BaseException | None:
        loop, waiting = asyncio.get_running_loop(), asyncio.Event()

        async def request() -> BaseException | None:
            task = asyncio.current_task()
            assert task is not None
            timer = RequestTimer(Pulse(), task, lambda: None)
            for reason in reasons:
                loop.call_soon(timer.interrupt, reason)
            try:
                await waiting.wait()
            except asyncio.CancelledError:
                taken = timer.take_reason()
                assert not task.cancelling()
                return taken
            finally:
                timer.close()
            return None

        return await asyncio.create_task(request())

    silence, gone, stopping = SilenceFailure("silent"), ClientGone(), Stopping()
    assert await interrupted(silence, gone) is gone
    assert await interrupted(silence, stopping) is stopping
    assert await interrupted(gone, silence) is gone
    assert await interrupted(gone, stopping) is gone
