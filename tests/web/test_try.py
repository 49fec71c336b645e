"""Try on the status page, in a real browser: several turns, a picture, sound."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from playwright.async_api import Browser

from simulator import SimVllm
from simulator.audio import SimAudio, silence
from tests.support import from_clients, running_gateway
from tests.web.house import FAST, looking, needs_chromium, shows

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


async def test_a_conversation_has_turns_and_a_picture(browser: Browser, tmp_path: Path) -> None:
    sim = SimVllm("a", served=["m"], vision=True)
    (tmp_path / "pixel.png").write_bytes(PIXEL)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(sim.serve())
        routes = f"{FAST}backends: {{a: {{url: '{url}', vision: true}}}}\naliases: {{chat: [a]}}\n"
        gateway = await stack.enter_async_context(running_gateway(routes))
        await gateway.until_ready("a")
        page, seen = await stack.enter_async_context(looking(browser, gateway.url, width=390))
        await page.get_by_role("button", name="Try chat").click()
        await page.fill("#try-text", "What is 12*17?")
        await page.set_input_files("#try-file", tmp_path / "pixel.png")
        await page.get_by_role("button", name="Send").click()
        await shows(page, "#try-state", "done")
        assert await page.input_value("#try-text") == ""
        await page.get_by_role("button", name="Send").click()
        await shows(page, "#try-state", "write something first")
        await page.fill("#try-text", "And 3 words more")
        await page.get_by_role("button", name="Send").click()
        await shows(page, "#try-turns", "you: What is 12*17? (with a picture)", "answer: ", "204")
        await shows(page, "#try-state", "done")
        asked = [one.json["messages"] for one in from_clients(sim.requests) if one.path == "/v1/chat/completions"]
        assert [message["role"] for message in asked[-1]] == ["user", "assistant", "user"]
        assert asked[-1][0]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")
        await page.get_by_role("button", name="New conversation").click()
        assert await page.is_hidden("#try-turns")
        assert await page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
        seen.quiet(gateway.url)


async def test_sound_is_written_down_and_a_text_is_spoken(browser: Browser, tmp_path: Path) -> None:
    hears, speaks = SimAudio("hears"), SimAudio("speaks", ["speech"])
    (tmp_path / "said.wav").write_bytes(silence(1.0))
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(sim.serve()) for sim in (hears, speaks)]
        routes = f"""{FAST}
backends:
  hears: {{engine: http, url: '{urls[0]}', serves: [transcriptions]}}
  speaks: {{engine: http, url: '{urls[1]}', serves: [speech]}}
aliases: {{transcribe: [hears], speak: [speaks]}}
"""
        gateway = await stack.enter_async_context(running_gateway(routes))
        await gateway.until_ready("hears", "speaks")
        page, seen = await stack.enter_async_context(looking(browser, gateway.url))
        await page.get_by_role("button", name="Try transcribe").click()
        assert await page.is_hidden("#try-text")
        await page.get_by_role("button", name="Send").click()
        await shows(page, "#try-state", "choose a file first")
        await page.set_input_files("#try-file", tmp_path / "said.wav")
        await page.get_by_role("button", name="Send").click()
        await shows(page, "#try-answer", "This is hears, simulated, after")
        await page.select_option("#try-alias", "speak")
        assert await page.is_hidden("#try-file")
        await page.fill("#try-text", "Good morning.")
        await page.get_by_role("button", name="Send").click()
        await shows(page, "#try-state", "done")
        await page.wait_for_function("() => document.getElementById('try-sound').duration > 0.1")
        await shows(page, "#try-route", "speaks")
        assert seen.errors == []
        assert [one for one in seen.asked if not one.removeprefix("blob:").startswith(gateway.url)] == []
