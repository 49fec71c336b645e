"""FastAPI is imported by the first request that needs it: several at once, and when that fails."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest

from gateway.http import app
from gateway.runtime.gateway import Gateway
from tests.support import running_gateway

ROUTES = "backends: {a: {url: 'http://127.0.0.1:9'}}\naliases: {chat: [a]}\n"
build = app._build_api


async def test_first_requests_at_the_same_time_import_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Gateway] = []

    def counted(gateway: Gateway) -> object:
        built.append(gateway)
        return build(gateway)

    monkeypatch.setattr(app, "_build_api", counted)
    async with running_gateway(ROUTES) as gateway:
        paths = ("/status", "/nothing", "/", "/v1/files") * 3
        answers = await asyncio.gather(*(gateway.client.get(path) for path in paths))
        assert [answer.status_code for answer in answers] == [200, 404, 200, 200] * 3
    assert len(built) == 1


async def test_a_failed_import_is_answered_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(error: Exception) -> Callable[[Gateway], object]:
        def fails(_: Gateway) -> object:
            raise error

        return fails

    async with running_gateway(ROUTES) as gateway:
        for error, status in ((OSError(errno.EMFILE, "Too many open files"), 503), (ImportError("broken"), 500)):
            with monkeypatch.context() as patch:
                patch.setattr(app, "_build_api", failing(error))
                assert (await gateway.client.get("/status")).status_code == status
                assert (await gateway.client.get("/health")).status_code == 200
        assert (await gateway.client.get("/status")).status_code == 200
