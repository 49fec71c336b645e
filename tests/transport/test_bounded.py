"""An answer that a probe does not read to its end leaves nothing behind."""

from __future__ import annotations

import httpx
import pytest

from gateway.transport.bounded import Oversized, fetch
from tests.garbage import garbage
from tests.http.test_connection_freed import answer_too_much
from tests.scripted import scripted


async def test_nothing_stays_of_an_answer_that_a_probe_does_not_read_to_its_end() -> None:
    async with scripted(answer_too_much) as backend, httpx.AsyncClient(trust_env=False) as client:
        for _ in range(2):
            with pytest.raises(Oversized):
                await fetch(client, "POST", backend.url, most=1000, seconds=5, json={})
            stayed = garbage()
        assert stayed == []
