"""The gateway's own parts: one that fails takes no other with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.supervision import Failures
from simulator import SimVllm
from tests.raw_client import chat
from tests.support import running_gateway


class Part:
    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close

    async def close(self) -> None:
        self._close()


def broken() -> None:
    raise RuntimeError("cannot be closed")


async def test_parts_after_one_that_cannot_be_closed_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []
    await Failures().close(Part(lambda: closed.append("a")), Part(broken), None, Part(lambda: closed.append("b")))
    assert closed == ["a", "b"]
    assert [r.getMessage() for r in caplog.records] == ["closing Part failed inside the gateway"]


async def test_usage_is_written_though_another_part_of_the_gateway_cannot_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sim = SimVllm("a")
    async with sim.serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        parts = gateway.gateway
        ended: list[str] = []
        close = parts.accounts.close

        async def close_accounts() -> None:
            await close()
            ended.append("accounts")

        async def close_batches() -> None:
            broken()

        monkeypatch.setattr(parts.accounts, "close", close_accounts)
        monkeypatch.setattr(parts.apps.batches, "close", close_batches)
        assert (await gateway.client.post("/v1/chat/completions", json=chat("a"))).status_code == 200
    assert ended == ["accounts"]
