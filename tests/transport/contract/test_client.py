"""Which client serves an origin."""

from __future__ import annotations

import pytest

from gateway.domain.upstream import UpstreamClient
from gateway.transport.aio import AioClient
from gateway.transport.h1 import H1Client, open_client

pytestmark = pytest.mark.filterwarnings("error")


async def test_the_origin_decides_which_client_serves_it() -> None:
    clients: list[UpstreamClient] = [
        open_client((scheme, "127.0.0.1", 443), connect_timeout=1.0) for scheme in ("http", "https")
    ]
    assert [type(client) for client in clients] == [H1Client, AioClient]
    for client in clients:
        await client.close()
