"""Batches on the status page, in a real browser that hears of them by events alone."""

from __future__ import annotations

import openai
import pytest
from playwright.async_api import Browser, Page

from gateway.apps.page import history, status
from simulator import SimVllm
from tests.apps.batches.filed import filed, jsonl, line
from tests.web.house import looking, needs_chromium, shows

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

PANEL = "#batches-panel"
KEYS = """clients:
  ops: {key: ops-key, admin: true}
  one: {key: "sk-one-0123456789"}
  two: {key: "sk-two-0123456789"}
"""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "LOOK", 0.05)
    monkeypatch.setattr(status, "BATCHES_EVERY", 0.1)
    monkeypatch.setattr(history, "EVERY", 3600.0)  # no samples: events alone


async def with_key(page: Page, key: str) -> None:
    await page.fill("#key", key)
    await page.click("#key-form button")
    await shows(page, "#live", "live")


def row(name: str) -> str:
    return f'{PANEL} tr[data-batch="{name}"]'


async def test_a_batch_is_followed_without_a_reload(browser: Browser) -> None:
    async with (
        filed(SimVllm("a", served=["m"], decode=20.0), slots=2) as f,
        looking(browser, f.gateway.url, polls=False) as (page, seen),
    ):
        await shows(page, "#live", "live")
        assert await page.is_hidden(PANEL)
        lines = [line("bad", model="nope"), *(line(f"r{n}", "5 words please") for n in range(299))]
        batch = await f.begin(jsonl(lines))
        await shows(page, row(batch.id), batch.id, "in_progress", "open", "nope, chat", "/ 300", "/s")
        await page.wait_for_function(
            "([place]) => /[0-9]+ (s|min|h)/.test(document.querySelector(`${place} [data-label=Left]`)?.textContent)",
            arg=[row(batch.id)],
        )
        await shows(page, f'{row(batch.id)} [data-label="Failed"]', "1")
        before = await page.inner_text(f'{row(batch.id)} [data-label="Done"]')
        await page.wait_for_function(
            "([place, before]) => document.querySelector(`${place} [data-label=Done]`).innerText !== before",
            arg=[row(batch.id), before],
        )
        await f.client.batches.cancel(batch.id)
        await f.ended(batch)
        await shows(page, row(batch.id), "cancelled")
        seen.quiet(f.gateway.url)


async def test_a_client_sees_its_own_batches_and_an_admin_all(browser: Browser) -> None:
    async with filed(key="sk-one-0123456789", top=KEYS) as f:
        clients: dict[str, openai.AsyncOpenAI] = {name: f.as_client(f"sk-{name}-0123456789") for name in ("one", "two")}
        done = {name: await f.begin(jsonl([line("r")]), client) for name, client in clients.items()}
        for name, client in clients.items():
            await f.ended(done[name], client)
        for key, names in (("ops-key", {"one", "two"}), ("sk-two-0123456789", {"two"})):
            async with looking(browser, f.gateway.url) as (page, _):
                await with_key(page, key)
                for name in names:
                    await shows(page, row(done[name].id), name, "completed", "1 / 1")
                for name in {"one", "two"} - names:
                    assert await page.locator(row(done[name].id)).count() == 0


async def test_what_ends_elsewhere_is_heard_by_its_client_alone(browser: Browser) -> None:
    """The events of one client do not tell of the batches of another."""
    async with (
        filed(key="sk-one-0123456789", top=KEYS) as f,
        looking(browser, f.gateway.url, polls=False) as (page, _),
    ):
        await with_key(page, "sk-one-0123456789")
        theirs = await f.begin(jsonl([line("r")]), f.as_client("sk-two-0123456789"))
        await f.ended(theirs, f.as_client("sk-two-0123456789"))
        own = await f.begin(jsonl([line("r")]))
        await shows(page, row(own.id), "completed")
        assert await page.locator(row(theirs.id)).count() == 0


async def test_a_batch_that_waits_says_why_and_is_cancelled(browser: Browser) -> None:
    async with filed(SimVllm("a", served=["m"]), slots=1) as f, looking(browser, f.gateway.url) as (page, seen):
        (backend,) = f.gateway.gateway.fleet.states
        await f.gateway.client.post(f"/admin/backends/{backend}/drain", headers={"content-type": "application/json"})
        batch = await f.begin(jsonl([line("r1")]))
        await shows(page, row(batch.id), "in_progress", "Nobody serves 'chat' now", "is draining")
        page.once("dialog", lambda dialog: dialog.accept())
        await page.click(f"{row(batch.id)} td.actions button")
        await shows(page, row(batch.id), "cancelled")
        seen.quiet(f.gateway.url)
