from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.engines.anthropic_server import AnthropicServer, anthropic_server


@pytest.fixture
async def server() -> AsyncIterator[AnthropicServer]:
    async with anthropic_server() as fake:
        yield fake
