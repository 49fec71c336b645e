"""A gateway that ends in the middle of a switch: the next one knows where it was."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.apps.control.record import FILE, INTERRUPTED, saved
from tests.apps.control.machine import FAST, Machine, begin, gateway_of, machine, steps
from tests.gateway_process import gateway_process
from tests.waiting import until_said

MODES = "{daily: [a, b], ds4: [c]}"


def routes_of(there: Machine) -> str:
    return f"{FAST}backends:\n{''.join(there.backend(name) for name in there.sims)}modes: {MODES}\n"


async def killed(folder: Path, there: Machine, order: str) -> None:
    """A gateway that is killed while a command has this order."""
    there.faults[order] = "hang"
    async with gateway_process(folder, routes_of(there)) as gateway:
        begun = await gateway.client.post("/admin/mode", json={"mode": "ds4"})
        assert begun.status_code == 202
        await there.until_asked(order)
        os.kill(gateway.pid, signal.SIGKILL)
    there.go_on()


@pytest.mark.parametrize(("order", "mode"), [("start c", "ds4"), ("stop a", "ds4")])
async def test_after_kill_9_the_next_start_knows_where_it_was(tmp_path: Path, order: str, mode: str) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there:
        await killed(tmp_path, there, order)
        async with gateway_process(tmp_path, routes_of(there)) as gateway:
            found = (await gateway.client.get("/admin/operations")).json()
            operation = found["operation"]
            assert (found["mode"], operation["state"], operation["error"]) == (mode, "failed", INTERRUPTED)
            what = {text.partition(":")[0]: text.partition(": ")[2] for text in steps(operation)}
            assert what[order] == "failed"
            assert what["resume c"] == "skipped"
            assert what["drain a"] == "done"
            assert "`gateway fleet switch daily` goes back" in operation["hint"]
            assert (await gateway.client.get(f"/admin/operations/{operation['id']}")).json() == operation
            assert await gateway.metric('gateway_switches_total{result="failed"}') == 1
            again = await gateway.client.post("/admin/mode", json={"mode": "ds4"})
            assert again.status_code == 202, "nothing is under way any more"
            await ended(gateway.client, again.json()["id"])


async def ended(client: httpx.AsyncClient, name: str) -> None:
    """Until the operation has ended, and well."""

    async def over() -> dict[str, Any] | None:
        found: dict[str, Any] = (await client.get(f"/admin/operations/{name}")).json()
        return None if found["state"] == "running" else found

    found = await until_said(over, within=20)
    assert found["state"] == "done", found


async def test_a_gateway_that_stops_says_so_and_kills_its_command(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there:
        there.faults["stop a"] = "hang"
        async with gateway_of(there, MODES, f"server: {{data: {tmp_path}}}\n") as gateway:
            await begin(gateway, "ds4")
            await there.until_asked("stop a")
        found = saved(tmp_path)
        assert found is not None
        assert (found.state, found.error) == ("failed", INTERRUPTED)


@pytest.mark.parametrize("content", [b"", b"{", b'{"id": 3}', b"\xff"])
async def test_a_record_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert saved(tmp_path) is None
    assert saved(tmp_path / "nowhere") is None


async def test_a_record_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / FILE).mkdir()
    async with (
        machine(tmp_path, "a", away="c") as there,
        gateway_of(there, "{daily: [a], ds4: [c]}", f"server: {{data: {tmp_path}/data}}\n") as gateway,
    ):
        begun = await begin(gateway, "ds4")
        await ended(gateway.client, begun["id"])
