"""One gateway for all tests of a file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.proxy.streams.stage import ROUTES, Stage, unexpected
from tests.scripted import scripted
from tests.support import running_gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def theatre() -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        s, t, u = [await stack.enter_async_context(scripted(unexpected, apart=True)) for _ in "stu"]
        gateway = await stack.enter_async_context(running_gateway(ROUTES.format(s=s.url, t=t.url, u=u.url)))
        await gateway.until_ready("s", "t", "u", "late")
        yield Stage(gateway, s, t, u)


@pytest.fixture
def stage(theatre: Stage) -> Stage:
    """All backends healthy, and none expects to be asked."""
    for state in theatre.gateway.gateway.fleet.states.values():
        state.evidence.succeeded()
    for backend in (theatre.s, theatre.t, theatre.u):
        backend.play(unexpected)
    return theatre
