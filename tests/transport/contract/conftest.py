"""The client contract holds for both clients."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.transport.contract.rig import MAKERS, Maker, Rig


@pytest.fixture(params=MAKERS, ids=["h1", "aio"])
def make(request: pytest.FixtureRequest) -> Maker:
    maker: Maker = request.param
    return maker


@pytest.fixture
async def rig(make: Maker) -> AsyncIterator[Rig]:
    """Fails the test that leaves a connection open after `close`."""
    rig = Rig(make)
    yield rig
    await rig.stop()
