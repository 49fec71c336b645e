"""A switch on the status page, in a real browser that hears of it by events alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Browser, Dialog

from gateway.apps.page import history, status
from gateway.domain.health_state import State
from tests.apps.control.machine import begin, ended, gateway_of, machine
from tests.web.house import CLIENTS, lacks, looking, needs_chromium, shows

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

MODES = "{daily: [a, b], ds4: [c]}"
PANEL = "#operation-panel"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "LOOK", 0.05)
    monkeypatch.setattr(history, "EVERY", 3600.0)  # no samples: events alone


def step(index: int) -> str:
    return f'{PANEL} tr[data-key="{index}"]'


async def test_a_switch_is_followed_step_by_step_without_a_reload(browser: Browser, tmp_path: Path) -> None:
    async with (
        machine(tmp_path, "a", "b", away="c") as there,
        gateway_of(there, MODES) as gateway,
        looking(browser, gateway.url, polls=False) as (page, seen),
    ):
        await shows(page, "#live", "live")
        assert await page.is_hidden(PANEL)
        there.faults["stop b"] = "hang"
        begun = await begin(gateway, "ds4")
        await shows(page, "#operation-state", "switch to ds4: running", "since")
        await shows(page, step(2), "stop a", "done", "s", "stop a: done")
        await shows(page, step(3), "stop b", "running", "0 s")
        await shows(page, step(5), "start c", "waiting")
        assert await page.get_by_role("button", name="Switch to daily").is_disabled()
        there.go_on()
        await ended(gateway, begun)
        await shows(page, "#operation-state", "switch to ds4: done", "took")
        await shows(page, step(5), "start c: done")
        await shows(page, "#about", "mode ds4")
        assert "backends.a.stop" not in await page.inner_text(step(2)), "the last line alone"
        seen.quiet(gateway.url)


async def test_the_seconds_of_a_step_run_on(browser: Browser, tmp_path: Path) -> None:
    async with (
        machine(tmp_path, "a", "b", away="c") as there,
        gateway_of(there, MODES) as gateway,
        looking(browser, gateway.url) as (page, _),
    ):
        there.faults["stop a"] = "hang"
        begun = await begin(gateway, "ds4")
        await shows(page, step(2), "stop a", "running", "1 s")
        await shows(page, step(2), "2 s")
        there.go_on()
        await ended(gateway, begun)


async def test_a_step_that_fails_shows_its_output_and_the_way_back(browser: Browser, tmp_path: Path) -> None:
    async with (
        machine(tmp_path, "a", "b", away="c") as there,
        gateway_of(there, MODES) as gateway,
        looking(browser, gateway.url, polls=False) as (page, _),
    ):
        await shows(page, "#live", "live")
        there.faults["start c"] = "refuse"
        await ended(gateway, await begin(gateway, "ds4"))
        await shows(page, "#operation-state", "switch to ds4: failed")
        await shows(page, step(5), "start c", "failed", "it cannot be", "exit code 1")
        await shows(page, PANEL, "start c: exit code 1", "What to do: ", "`gateway fleet switch daily` goes back")


async def test_an_admin_switches_after_reading_the_steps(browser: Browser, tmp_path: Path) -> None:
    asked: list[str] = []

    async def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        await (dialog.dismiss() if len(asked) == 1 else dialog.accept())

    async with (
        machine(tmp_path, "a", "b", away="c") as there,
        gateway_of(there, MODES) as gateway,
        looking(browser, gateway.url, polls=False) as (page, _),
    ):
        page.on("dialog", lambda dialog: asyncio.ensure_future(answer(dialog)))
        button = page.get_by_role("button", name="Switch to ds4")
        await button.click()
        await gateway.until(lambda: len(asked) == 1)
        assert asked[0].startswith("Switch from daily to ds4?\n\ndrain a\ndrain b\nstop a\nstop b\nstart c\n")
        assert there.orders == []
        await button.click()
        await shows(page, "#operation-state", "switch to ds4: done")
        assert gateway.state("c") is State.READY
        await page.get_by_role("button", name="Switch to daily").wait_for()


async def test_who_is_no_admin_sees_the_steps_and_neither_output_nor_buttons(browser: Browser, tmp_path: Path) -> None:
    async with machine(tmp_path, "a", away="c") as there:
        there.lines["stop a"] = "sh -c ''echo a-secret; exit 1''"
        async with gateway_of(there, "{daily: [a], ds4: [c]}", CLIENTS) as gateway:
            ops = {"authorization": "Bearer ops-key"}
            await gateway.client.post("/admin/mode", json={"mode": "ds4"}, headers=ops)
            latest = gateway.gateway.apps.control.operations.latest
            assert latest is not None
            await gateway.until(lambda: latest.ended is not None)
            async with looking(browser, gateway.url, polls=False) as (page, _):
                await page.fill("#key", "hermes-key")
                await page.keyboard.press("Enter")
                await shows(page, "#operation-state", "switch to ds4: failed")
                await shows(page, step(1), "stop a", "failed")
                await lacks(page, PANEL, "a-secret")
                assert await page.get_by_role("button", name="Switch to ds4").count() == 0
            async with looking(browser, gateway.url, polls=False) as (page, _):
                await page.fill("#key", "ops-key")
                await page.keyboard.press("Enter")
                await shows(page, step(1), "a-secret", "exit code 1")
