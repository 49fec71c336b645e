"""The stage of the tests of one API: a module's gateway, and its two scripted backends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.apps.dialects.stage import ROUTES, Stage, unexpected
from tests.scripted import scripted
from tests.support import running_gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def theatre(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    """With the ROUTES of the module, where it has its own."""
    async with AsyncExitStack() as stack:
        s, t = [await stack.enter_async_context(scripted(unexpected, apart=True)) for _ in "st"]
        routes: str = getattr(request.module, "ROUTES", ROUTES)
        gateway = await stack.enter_async_context(running_gateway(routes.format(s=s.url, t=t.url)))
        await gateway.until_ready(*(one.name for one in gateway.gateway.snapshot.backends.values() if not one.cloud))
        yield Stage(gateway, s, t)


@pytest_asyncio.fixture(loop_scope="module")
async def stage(theatre: Stage) -> AsyncIterator[Stage]:
    """Afterwards nothing is left of the requests."""
    theatre.s.play(unexpected)
    theatre.t.play(unexpected)
    yield theatre
    await theatre.gateway.until(theatre.gateway.idle)
    assert theatre.gateway.gateway.memory.used == 0
    for state in theatre.gateway.gateway.fleet.states.values():
        state.evidence.succeeded()
        state.forget()
