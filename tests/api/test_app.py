"""The paths that FastAPI serves, and clients that leave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.raw_client import raw_client
from tests.support import running_gateway
from tests.waiting import until

READ_LATER = ("GET", "HEAD")


async def test_a_client_that_leaves_in_the_middle_of_a_body_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    routes = "backends: {a: {url: 'http://127.0.0.1:9'}}"
    async with running_gateway(routes) as gateway:
        await gateway.client.get("/admin/nothing")  # the paths are built
        api = gateway.app._api
        assert api is not None
        asked = {
            (method, route.path)
            for route in included(api.routes)
            for method in route.methods
            if method not in READ_LATER
        }
        assert len(asked) > 20
        for method, path in sorted(asked):
            path = path.replace("{name}", "x").replace("{alias}", "x").replace("{mode}", "x")
            for body in (b"", b'{"a": ', b"--b\r\n"):
                async with raw_client(gateway.url) as client:
                    head = f"{method} {path} HTTP/1.1\r\nhost: gateway\r\ncontent-length: 100\r\ncontent-type: "
                    kind = "multipart/form-data; boundary=b" if body[:1] == b"-" else "application/json"
                    await client.send(f"{head}{kind}\r\n\r\n".encode() + body)
                    await asyncio.sleep(0)
        await until(lambda: gateway.metric("gateway_open_connections") <= 1)
        assert (await gateway.client.get("/health")).status_code == 200
    assert [record.getMessage()[:300] for record in caplog.records if record.levelno >= logging.WARNING] == []


def included(routes: Any) -> Iterator[Any]:
    """The routes with those of the routers among them."""
    for route in routes:
        if hasattr(route, "methods"):
            yield route
        elif hasattr(route, "original_router"):
            yield from included(route.original_router.routes)
