"""The requests on the status page: those that run, the last ones, and the story that a row opens."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Browser

from simulator import SimVllm
from tests.raw_client import chat
from tests.web.house import CLIENTS, house, lacks, looking, needs_chromium, shows

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

CHAT = "/v1/chat/completions"
WIDE = "document.documentElement.scrollWidth - window.innerWidth"


def of(id: str) -> str:
    return f'#requests tr[data-request="{id}"]'


async def test_a_row_opens_the_story_of_its_request(browser: Browser) -> None:
    async with house() as h, looking(browser, h.url, width=390) as (page, seen):
        await shows(page, "#requests", "No such request.")
        sim = h.sims["qwen36"]
        assert isinstance(sim, SimVllm)
        sim.fault("status", status=500, count=1)
        for model, id in (("coder", "first"), ("nobody", "second")):
            await h.gateway.client.post(CHAT, json=chat(model), headers={"x-request-id": id})
        await shows(page, of("first"), "fallback: failed", "coder", "qwen8b")
        await shows(page, of("second"), "model_not_found")
        await page.click(of("first") + " button")
        await shows(
            page, "#requests tr.story", "qwen36 was asked and left (failed)", "The client got the whole answer."
        )
        assert await page.evaluate(WIDE) <= 0
        await page.click(of("first") + " button")
        await lacks(page, "#requests", "was asked and left")
        await page.fill("#requests-find", "not_found")
        await lacks(page, "#requests", "fallback: failed")
        await shows(page, of("second"), "model_not_found")
        await page.fill("#requests-find", "")
        await page.check("#requests-failed")
        await shows(page, "#requests", "No such request.")
        seen.quiet(h.url)


async def test_a_request_that_runs_is_seen_and_cancelled(browser: Browser) -> None:
    async with house() as h, looking(browser, h.url) as (page, seen):
        sim = h.sims["gemma4"]
        assert isinstance(sim, SimVllm)
        sim.fault("hang_before")
        asking = asyncio.create_task(
            h.gateway.client.post(CHAT, json=chat("writer", stream=True), headers={"x-request-id": "slow"})
        )
        await shows(page, of("slow"), "now", "reading the prompt", "writer", "gemma4")
        page.once("dialog", lambda dialog: dialog.accept())
        await page.click(of("slow") + " td.actions button")
        assert (await asking).status_code == 499
        await shows(page, "#notice", "slow was cancelled.")
        await shows(page, of("slow"), "request_cancelled")
        seen.quiet(h.url)


async def test_a_client_sees_its_own_requests(browser: Browser) -> None:
    async with house(CLIENTS) as h, looking(browser, h.url) as (page, seen):
        for key in ("ops-key", "hermes-key"):
            headers = {"authorization": f"Bearer {key}", "x-request-id": f"of-{key}"}
            await h.gateway.client.post(CHAT, json=chat("coder"), headers=headers)
        await page.fill("#key", "hermes-key")
        await page.click("#key-form button")
        await shows(page, of("of-hermes-key"), "200")
        await lacks(page, "#requests", "ops")
        assert all("401" in error for error in seen.errors)


async def test_bodies_are_captured_and_a_request_is_sent_again(browser: Browser) -> None:
    async with house() as h, looking(browser, h.url) as (page, seen):
        page.on("dialog", lambda dialog: dialog.accept())
        await page.click('[data-action="capture"]')
        await shows(page, "#requests", "Bodies of all clients are captured until", "0 so far")
        await h.gateway.client.post(CHAT, json=chat("coder"), headers={"x-request-id": "first"})
        await shows(page, "#requests", "1 so far")
        await page.click(of("first") + " button")
        await page.click('[data-action="replay"]')
        await shows(page, "#requests tr.story", "then", "now, qwen36")
        first, second = await page.locator("#requests tr.story pre").all_inner_texts()
        assert first
        assert first == second
        await page.click('[data-action="capture"]')
        await shows(page, "#requests", "Capture bodies for 15 min")
        seen.quiet(h.url)
