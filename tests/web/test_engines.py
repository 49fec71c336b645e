"""Logs, starts, stops and restarts of engines on the status page, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, Dialog, Page

from gateway.apps.page import history, status
from tests.apps.control.node import fleet
from tests.web.house import CLIENTS, house, looking, needs_chromium, row, shows

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

MODES = "{daily: [a], ds4: [c]}"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "LOOK", 0.05)
    monkeypatch.setattr(history, "EVERY", 3600.0)  # no samples: events alone


class Questions:
    """The confirmations of a page, answered with `accept`."""

    def __init__(self, page: Page) -> None:
        self.asked: list[str] = []
        self.accept = True
        page.on("dialog", self._answer)

    async def _answer(self, dialog: Dialog) -> None:
        self.asked.append(dialog.message)
        await (dialog.accept() if self.accept else dialog.dismiss())


async def test_the_log_of_an_engine_is_followed_in_a_dialog(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=MODES, nodes={}) as (gateway, _, node):
        node.says("\x1b[32mfirst\x1b[0m <img src=x onerror=alert(1)>", "api key sk-0123456789abcdef")
        follow = f"*-f*) exec tail -n 200 -f {tmp_path}/journal ;;"
        (tmp_path / "journalctl").write_text(f'#!/bin/sh\ncase "$*" in {follow} esac\necho x\n')
        async with looking(browser, gateway.url, width=390, polls=False) as (page, seen):
            await shows(page, row("a"), "ready")
            await page.get_by_role("button", name="Logs a").click()
            await shows(page, "#logs", "Log of a", "first <img src=x onerror=alert(1)>", "api key ********")
            with (tmp_path / "journal").open("a") as journal:
                journal.write("second\n")
            await shows(page, "#logs-text", "second")
            await page.keyboard.press("Escape")
            assert await page.locator("#logs[open]").count() == 0
            assert await page.evaluate("document.activeElement.getAttribute('aria-label')") == "Logs a"
            seen.quiet(gateway.url)


async def test_a_log_that_cannot_be_read_says_why(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=MODES, nodes={}) as (gateway, _, _node):
        (tmp_path / "cut").write_text("journalctl")
        async with looking(browser, gateway.url, polls=False) as (page, _):
            await page.get_by_role("button", name="Logs a").click()
            await shows(page, "#logs-text", "not responding")
            await page.get_by_role("button", name="Close").first.click()
            assert await page.locator("#logs[open]").count() == 0


async def test_an_engine_is_stopped_and_started_after_a_question(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        fleet(tmp_path, monkeypatch, "a", away="c", modes=MODES, nodes={}) as (gateway, there, _),
        looking(browser, gateway.url, width=390, polls=False) as (page, _seen),
    ):
        questions = Questions(page)
        questions.accept = False
        await page.get_by_role("button", name="Stop a").click()
        await page.wait_for_function("() => document.querySelector('[data-backend=a] [data-action=stop]')")
        await gateway.until(lambda: len(questions.asked) == 1)
        assert questions.asked[0].splitlines()[:4] == ["Stop a?", "", "drain a", "stop a"]
        assert there.orders == []
        questions.accept = True
        await page.get_by_role("button", name="Stop a").click()
        await shows(page, "#operation-state", "stop a: done")
        await page.get_by_role("button", name="Start a").click()
        await shows(page, "#operation-state", "start a: done")
        await shows(page, row("a"), "ready", "Restart")
        await page.get_by_role("button", name="Restart a").click()
        await shows(page, "#operation-state", "restart a: done")
        assert questions.asked[-1].splitlines()[0] == "Restart a?"
        assert there.orders == ["stop a", "start a", "stop a", "start a"]


async def test_an_operation_is_cancelled_after_a_question(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        fleet(tmp_path, monkeypatch, "a", away="c", modes=MODES, nodes={}) as (gateway, there, _),
        looking(browser, gateway.url, polls=False) as (page, _seen),
    ):
        questions = Questions(page)
        there.faults["stop a"] = "hang"
        await page.get_by_role("button", name="Switch to ds4").click()
        await there.until_asked("stop a")
        await shows(page, "#operation-state", "switch to ds4: running", "Cancel")
        await page.locator("#operation-state").get_by_role("button", name="Cancel").click()
        await shows(page, "#operation-state", "switch to ds4: failed")
        await shows(page, "#operation", "cancelled")
        assert questions.asked[-1].startswith("Cancel switch to ds4? ")
        there.go_on()


async def test_who_is_no_admin_has_no_buttons_of_engines_and_links_work_with_a_key(browser: Browser) -> None:
    async with house(CLIENTS) as h, looking(browser, h.url) as (page, seen):
        await page.fill("#key", "hermes-key")
        await page.keyboard.press("Enter")
        await shows(page, row("qwen36"), "ready")
        for word in ("Logs", "Restart", "Stop", "Drain"):
            assert await page.get_by_role("button", name=f"{word} qwen36").count() == 0
        await page.locator("footer").get_by_role("link", name="status").click()
        await shows(page, "#logs", "/status", '"backends"')
        assert all(asked.startswith(h.url) for asked in seen.asked)
