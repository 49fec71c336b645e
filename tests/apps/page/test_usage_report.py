"""`/status/usage`: usage by client, and who sees whose."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from tests.apps.page.test_status import asked, two
from tests.apps.page.test_status_numbers import CLIENTS, HERMES, OPS, chat, got
from tests.support import PATIENCE, RunningGateway
from tests.waiting import until_said


async def test_usage_is_told_by_client() -> None:
    async with two() as (gateway, _, _):
        await chat(gateway)
        told = await until_used(gateway)
        row = told["today"]["clients"][0]
        assert (row["client"], row["requests"], row["errors"]) == ("open", 1, 0)
        assert row["prompt"] > 0
        assert told["week"]["clients"][0]["requests"] == 1
        assert told["today"]["since"] % 86400 == 0


async def until_used(gateway: RunningGateway, **headers: str) -> Any:
    """The ledger is written a moment later, and is not read for everybody who asks."""

    async def read() -> Any:
        with patch("gateway.apps.page.usage_report.FRESH", 0.0):
            told = await got(gateway, "/status/usage", **headers)
        return told if told["today"]["clients"] else None

    return await until_said(read)


async def test_many_who_look_read_the_ledger_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0

    def counted(*_: object) -> list[Any]:
        nonlocal reads
        reads += 1
        return []

    monkeypatch.setattr("gateway.apps.page.usage_report.sums_since", counted)
    async with two() as (gateway, _, _):
        gateway.gateway.accounts.ledger.path.parent.mkdir(exist_ok=True)
        gateway.gateway.accounts.ledger.path.touch()
        await asyncio.gather(*(got(gateway, "/status/usage") for _ in range(8)))
        assert reads == 2, "today and the week"


async def test_a_ledger_that_cannot_be_read_is_said() -> None:
    async with two() as (gateway, _, _):
        gateway.gateway.accounts.ledger.path.write_bytes(b"this is no database" * 100)
        assert "cannot be read" in (await got(gateway, "/status/usage"))["error"]


async def test_a_client_sees_its_own_usage_and_budget_and_an_admin_everybodys() -> None:
    async with two(CLIENTS) as (gateway, _, _):
        await chat(gateway, **HERMES)
        await chat(gateway, **{"x-api-key": "webui-key"})
        await until_used(gateway, **OPS)
        async with asyncio.timeout(PATIENCE):
            while len((await until_used(gateway, **OPS))["week"]["clients"]) < 2:
                pass
        mine = await got(gateway, "/status/usage", **HERMES)
        assert [row["client"] for row in mine["today"]["clients"]] == ["hermes"]
        assert set((await asked(gateway, **HERMES))["budgets"]) == {"client hermes"}
        assert set((await asked(gateway, **OPS))["budgets"]) == {"client hermes", "client webui"}
