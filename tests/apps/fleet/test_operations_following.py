"""Operations that cannot begin, or have no gateway to ask."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.apps.control.machine import gateway_of, machine
from tests.apps.fleet.test_operations import FILE, MODES, ask, run


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "routes.yaml").write_text(FILE)
    return tmp_path


async def test_what_cannot_begin(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES) as gateway:
        unknown = await ask(gateway, "switch", "dayly")
        assert (unknown.exit_code, unknown.stderr) == (2, "Error: There is no mode 'dayly'. Modes: daily, ds4.\n")
        assert (await ask(gateway, "start", "z")).exit_code == 2
        there.faults["stop a"] = "hang"
        first = asyncio.create_task(ask(gateway, "stop", "a", "--json"))  # prints at its end alone
        await there.until_asked("stop a")
        second = await ask(gateway, "switch", "ds4", "--json")
        assert second.exit_code == 1
        assert "Another operation is under way: stop a" in json.loads(second.stdout)["error"]
        running = await ask(gateway, "status")
        assert "Under way: stop a, running" in running.stdout
        there.go_on()
        assert (await first).exit_code == 0
        started = await ask(gateway, "start", "a")
        assert started.exit_code == 0
        assert there.orders == ["stop a", "start a"]


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize("arguments", [("switch", "much"), ("start", "a"), ("stop", "a"), ("status",)])
def test_nothing_is_done_without_a_gateway(arguments: tuple[str, ...]) -> None:
    answer = run(*arguments)
    assert answer.exit_code == 1
    assert answer.stderr.startswith("Error: the gateway at http://127.0.0.1:9 cannot be reached: ")
