"""The status page of a gateway that shares its fleet with others."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Browser

from gateway.admission.capacity import capacity
from gateway.apps.page import history, status
from simulator import SimVllm
from tests.apps.cluster.joined import shared
from tests.apps.cluster.redis_server import running_redis
from tests.raw_client import chat
from tests.support import running_gateway
from tests.web.house import house, lacks, looking, needs_chromium, row, shows

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

SLOTS = ' [data-label="Slots"]'


async def test_what_others_hold_is_shown_and_that_redis_is_away(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "EVERY", 0.2)
    monkeypatch.setattr(status, "LOOK", 0.05)
    with running_redis() as redis:
        server = f"server: {{shared: '{redis.url}?socket_timeout=2'}}\n"
        async with house(server) as h:
            url = h.gateway.gateway.snapshot.backends["qwen36"].url
            alike = f"{server}backends: {{qwen36: {{url: '{url}', slots: 4}}}}"
            async with running_gateway(alike) as other, looking(browser, h.url, polls=False) as (page, seen):
                await other.until_ready("qwen36")
                await h.gateway.until(lambda: shared(h.gateway).gateways == 2)
                sim = h.sims["qwen36"]
                assert isinstance(sim, SimVllm)
                sim.fault("hang_mid", after=2, count=3)
                body = chat("qwen36", "9 words", stream=True)
                asked = [other.client.post("/v1/chat/completions", json=body, timeout=120.0) for _ in range(3)]
                held = [asyncio.create_task(asking) for asking in asked]
                await shows(page, row("qwen36") + SLOTS, "3 / 4", "3 at other gateways")
                await shows(page, "#verdict", "All well")
                await page.reload()
                await shows(page, "#about", "one of 2 gateways")
                await shows(page, row("qwen36") + SLOTS, "3 / 4", "3 at other gateways")
                redis.kill()
                await shows(
                    page, "#banner .problem.warn", "Redis is away", "goes on alone", "(1 of 2 gateways)", "since"
                )
                await lacks(page, "#about", "gateways")
                sim.clear()
                await asyncio.gather(*held)
                # until then the engine's own count tells of them, and there is less room
                await h.gateway.until(lambda: capacity(h.gateway.gateway.fleet["qwen36"]) == 2)
                await page.reload()
                await shows(page, row("qwen36") + SLOTS, "share: 2")
                redis.start()
                await lacks(page, "#banner", "Redis")
                await shows(page, "#about", "one of 2 gateways")
                await lacks(page, row("qwen36") + SLOTS, "share")
                seen.quiet(h.url)
