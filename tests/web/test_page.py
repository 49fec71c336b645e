"""The status page in a real browser."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser

from gateway.accounting.ledger_file import Entry, sums_since
from gateway.apps.page import history, status
from gateway.domain.health_state import State
from simulator import SimVllm
from tests.support import running_gateway
from tests.web.house import CLIENTS, FAST, Wire, house, lacks, looking, needs_chromium, row, shows

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

WIDE = "document.documentElement.scrollWidth - window.innerWidth"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples and events without the wait."""
    monkeypatch.setattr(history, "EVERY", 0.2)
    monkeypatch.setattr(status, "LOOK", 0.05)


def body(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "What is 12*17?"}], **more}


# -- what it shows ----------------------------------------------------------------------------------------------------


async def test_the_memory_plan_is_drawn_beside_what_the_nodes_hold(browser: Browser) -> None:
    async with house() as h, looking(browser, h.url) as (page, _):
        await page.wait_for_selector("#plan .picture svg rect")
        await shows(page, "#plan", "spark1", "GiB in use")


async def test_the_fleet_is_there_at_a_glance_and_nobody_else_is_asked(browser: Browser) -> None:
    async with house() as h:
        for _ in range(3):
            assert (await h.gateway.client.post("/v1/chat/completions", json=body("coder"))).status_code == 200
        await h.gateway.client.post("/admin/backends/qwen36/probe", params={"now": True}, headers={"host": "localhost"})
        async with looking(browser, h.url) as (page, seen):
            await shows(page, "#verdict", "All well: 3 of 3 backends serve")
            await shows(page, "#live", "live")
            await shows(page, "#aliases", "coder", "first step qwen36", "writer")
            await shows(page, "#fleet", "spark1", "up", "52 of 120 GiB", "44 °C", "GPU 0 %", "12 W")
            await shows(page, row("qwen36"), "ready", "0 / 4", "Qwen3.6-35B-A3B", "131 k window")
            await shows(page, row("qwen36") + ' [data-label^="First token"]', "ms")
            sampled = h.gateway.gateway.apps.page
            await h.gateway.until(lambda: sampled.latest["backends"]["qwen36"]["kv"] is not None)
            assert (await h.gateway.client.post("/v1/chat/completions", json=body("coder"))).status_code == 200
            await shows(page, row("qwen36") + ' [data-label^="Drafts"]', "%")  # between two looks at its counters
            await shows(page, row("qwen36") + ' [data-label^="KV"]', "%")
            await shows(page, "#fleet tbody:last-of-type", "Cloud", "fireworks")
            await shows(page, "#canaries", "qwen36", "arithmetic", "json schema")
            await shows(page, "#usage", "Today (UTC)", "open")
            await shows(page, "#events", "qwen36", "unknown → ready")
            await page.wait_for_selector("#chart-decode .u-over")
            await shows(page, "#chart-memory_used", "spark1 52")
            seen.quiet(h.url)


async def test_seconds_of_speech_are_beside_the_tokens_of_clients_that_have_some(browser: Browser) -> None:
    async with house() as h, looking(browser, h.url) as (page, seen):
        await shows(page, "#usage", "Today (UTC): no request.")
        ledger = h.gateway.gateway.accounts.ledger
        speech = Entry(time.time(), "webui", "transcribe", "a", "transcriptions", "200", 1, 2.0, 0, 0, 0, 0, 0.0, 0)
        ledger.put(replace(speech, audio_in_seconds=1800.0))
        ledger.put(replace(speech, endpoint="speech", audio_out_seconds=60.0))
        await h.gateway.until(lambda: ledger.path.exists() and len(sums_since(ledger.path, 0.0)) == 1)
        with patch("gateway.apps.page.usage_report.FRESH", 0.0):  # the sums are kept for some seconds
            await page.reload()
            await shows(page, '#usage [data-label="Audio"]', "31 min")
        title = await page.locator('#usage [data-label="Audio"]').first.get_attribute("title")
        assert title == "1,800 s transcribed or translated, 60 s spoken"
        seen.quiet(h.url)


async def test_a_backend_that_dies_and_returns_is_seen_without_a_reload(browser: Browser) -> None:
    async with house() as h, looking(browser, h.url, polls=False) as (page, seen):
        await shows(page, row("gemma4"), "ready")
        await h.sims["gemma4"].kill()
        await shows(page, row("gemma4"), "down")
        await shows(page, "#banner", "gemma4 is down.", "since")
        await shows(page, "#events", "gemma4 suspect → down")
        await h.sims["gemma4"].revive()
        await shows(page, row("gemma4"), "ready")
        await lacks(page, "#banner", "gemma4")
        await shows(page, "#verdict", "All well")
        seen.quiet(h.url)


async def test_a_fallback_and_the_cloud_are_loud_and_say_what_they_cost(browser: Browser) -> None:
    async with house() as h, looking(browser, h.url) as (page, _):
        await shows(page, "#verdict", "All well")
        await h.sims["qwen36"].kill()
        await shows(page, "#banner", "coder is on a fallback: qwen8b.", "qwen36 is down", "since")
        await shows(page, "#announce", "coder is on a fallback: qwen8b.")
        await shows(page, "#aliases", "fallback qwen8b since")
        await h.sims["qwen8b"].kill()
        await shows(
            page, "#banner .problem.bad", "coder is on the cloud: fireworks.", "Prompts leave the LAN.", "0 USD"
        )
        assert (await h.gateway.client.post("/v1/chat/completions", json=body("coder"))).status_code == 200
        usd = h.gateway.gateway.alias_status.cost("coder")
        assert usd is not None
        assert usd > 0.1
        await page.reload()
        await shows(page, "#banner", f"Cost since then: {usd:.2f} USD.")
        assert (await page.title()).startswith("✕")
        await h.sims["qwen36"].revive()
        await lacks(page, "#banner", "coder")
        await shows(page, "#aliases", "coder", "first step qwen36")


async def test_a_later_step_that_serves_because_the_first_is_parked_is_named_by_its_number(browser: Browser) -> None:
    async with house(declared=", run: on_demand") as h, looking(browser, h.url) as (page, _):
        await shows(page, "#aliases", "coder", "first step qwen36")
        await h.sims["qwen36"].kill()
        await shows(page, "#aliases", "coder", "step 2 qwen8b")


async def test_the_mode_in_force_is_shown_and_what_it_parks_is_no_problem(browser: Browser) -> None:
    modes = "modes: {daily: [qwen36, gemma4, qwen8b], small: [qwen8b]}\n"
    async with house(modes) as h, looking(browser, h.url) as (page, _):
        await shows(page, "#about", "mode daily")
        await h.gateway.gateway.put_mode_in_force("small")
        await shows(page, "#about", "mode small")
        await shows(page, "#events", "mode daily → small", "chosen")
        await shows(page, "#aliases", "coder", "step 2 qwen8b")
        await shows(page, "#verdict", "2 parked")
        await lacks(page, "#banner", "coder")


async def test_aliases_that_the_mode_is_without_are_named_and_are_no_problem(browser: Browser) -> None:
    modes = "modes: {daily: [qwen36, gemma4, qwen8b], big: [gemma4]}\n"
    async with house(modes) as h, looking(browser, h.url) as (page, _):
        await shows(page, "#verdict.ok", "All well: 3 of 3 backends serve")
        assert await page.title() == "✓ spark-gateway"
        await h.gateway.gateway.put_mode_in_force("big")
        await shows(page, "#verdict.off", "1 of 2 aliases served: nobody serves coder in mode big")
        assert await page.title() == "– nobody serves coder spark-gateway"
        await lacks(page, "#banner", "coder")
        await h.sims["gemma4"].kill()
        await shows(page, "#verdict.bad", "1 problem: nobody serves writer")
        assert (await page.title()).endswith("nobody serves writer spark-gateway")


async def test_an_edit_that_is_not_valid_is_shown(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    error = "routes.yaml:14 aliases.coder: unknown backend 'qwen63'"
    described = status.describe

    def refused(gateway: Any, figures: Any) -> dict[str, Any]:
        return {**described(gateway, figures), "config": {"path": "routes.yaml", "loaded_at": 0.0, "error": error}}

    monkeypatch.setattr(status, "describe", refused)
    async with house() as h, looking(browser, h.url) as (page, _):
        await shows(page, "#banner .problem.bad", "routes.yaml was edited and is not valid.", error)
        await shows(page, "#tools", "Reload routes.yaml")


async def test_drift_is_shown(browser: Browser) -> None:
    async with house(declared=", context: 262144") as h, looking(browser, h.url) as (page, _):
        await shows(page, row("qwen36"), "drift: context: 262144 is declared, it serves 131072")
        await shows(page, "#banner", "qwen36 is not what routes.yaml says.")


async def test_the_flags_of_an_engine_are_told_where_its_model_is(browser: Browser) -> None:
    async with house() as h, looking(browser, h.url) as (page, _):
        about = page.locator(f"{row('qwen36')} .about")
        assert "gpu-memory-utilization: 0.92" in (await about.get_attribute("title") or "").splitlines()


async def test_the_evidence_of_a_check_is_shown_when_it_is_chosen(browser: Browser) -> None:
    async with house() as h:
        await h.gateway.client.post("/admin/backends/qwen36/probe", params={"now": True}, headers={"host": "localhost"})
        async with looking(browser, h.url) as (page, _):
            mark = page.get_by_role("button", name="qwen36, arithmetic: yes.")
            await mark.focus()
            await page.keyboard.press("Enter")
            await shows(page, "#evidence", "qwen36, arithmetic: yes", "204", "ago")
            assert await mark.get_attribute("aria-pressed") == "true"
            assert await mark.evaluate("e => e === document.activeElement"), "the focus is where it was"


# -- the corners ------------------------------------------------------------------------------------------------------


async def test_one_backend_without_a_node_or_an_alias(browser: Browser) -> None:
    async with (
        SimVllm("a").serve() as url,
        running_gateway(f"{FAST}backends: {{a: {{url: '{url}'}}}}") as gateway,
        looking(browser, gateway.url, width=390) as (page, seen),
    ):
        await shows(page, "#verdict", "All well: 1 of 1 backends serve")
        await shows(page, row("a"), "ready")
        await shows(page, "#aliases", "1 backend under its own name")
        await shows(page, "#usage", "Today (UTC): no request.")
        await shows(page, "#canaries", "Nothing is known now")
        assert await page.locator("tr.group").count() == 0
        assert await page.evaluate(WIDE) <= 0
        seen.quiet(gateway.url)


async def test_backends_of_one_node_that_fall_together_are_one_problem(browser: Browser) -> None:
    """Its exporter still answers."""
    async with (
        house("  late: [qwen8b]\n  later: [qwen36, qwen8b]\n") as h,
        looking(browser, h.url, width=390) as (page, _),
    ):
        for name in ("qwen36", "qwen8b"):
            await h.sims[name].kill()
        await shows(
            page, "#banner", "2 backends on spark1 are down: ", "Nobody serves late, later.", "coder is on the cloud"
        )
        await shows(page, "#banner", "What to do: gateway fleet status")
        await shows(page, "#verdict", "2 problems: nobody serves late, later")


async def test_an_alias_whose_first_step_is_parked_stands_with_the_backend_behind_it(browser: Browser) -> None:
    on_demand = house("  late: [qwen36, qwen8b]\n", declared=", run: on_demand")
    async with on_demand as h, looking(browser, h.url, width=390) as (page, _):
        for name in ("qwen36", "qwen8b"):
            await h.sims[name].kill()
        await shows(page, "#banner", "qwen8b is down. Nobody serves late.", "What to do: gateway probe qwen8b")


async def test_a_node_that_falls_with_its_backends_is_one_problem(browser: Browser) -> None:
    sims = [SimVllm(name, served=[name]) for name in ("a", "b", "c")]
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(sim.serve()) for sim in sims]
        nodes = ("spark1", "spark1", "spark2")
        keys = zip("abc", urls, nodes, strict=True)
        backends = "".join(f"  {name}: {{url: '{url}', node: {node}}}\n" for name, url, node in keys)
        head = f"{FAST}nodes: {{spark1: {{}}, spark2: {{}}}}\nbackends:\n{backends}"
        gateway = await stack.enter_async_context(running_gateway(f"{head}aliases: {{w: [a, c], x: [b]}}\n"))
        await gateway.until_ready("a", "b", "c")
        page, _ = await stack.enter_async_context(looking(browser, gateway.url, width=390))
        for sim in sims[:2]:
            await sim.kill()
        await shows(
            page, "#banner", "Node spark1 is down, and with it ", " w is on a fallback: c.", " Nobody serves x."
        )
        await shows(page, "#banner", "What to do: see whether the machine runs, and its network")
        await shows(page, "#verdict", "1 problem: nobody serves x")
        await sims[0].revive()
        await shows(page, "#banner", "b is down. Nobody serves x.")


async def test_thirty_backends_with_long_names_fit_every_width(browser: Browser) -> None:
    long = "a-name-that-somebody-has-made-very-long-indeed-to-see-what-happens"
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(SimVllm("sim", [f"{long}/{long}-<b>bold</b>"]).serve())
        names = [f"{long}-{number}" for number in range(30)]
        nodes = "".join(f"  {long}-node{n}: {{memory: 120GiB}}\n" for n in range(4))
        backends = "".join(f"  {name}: {{url: '{url}', node: {long}-node{i % 4}}}\n" for i, name in enumerate(names))
        aliases = f"aliases: {{{long}: [{', '.join(names[:12])}]}}\n"
        gateway = await stack.enter_async_context(running_gateway(f"nodes:\n{nodes}backends:\n{backends}{aliases}"))
        page, seen = await stack.enter_async_context(looking(browser, gateway.url))
        for width in (1280, 768, 390, 320):
            await page.set_viewport_size({"width": width, "height": 800})
            await shows(page, row(names[29]), "ready", "<b>bold</b>")
            assert await page.evaluate(WIDE) <= 0, width
        seen.quiet(gateway.url)


async def test_a_gateway_that_is_gone_is_told_and_found_again(browser: Browser) -> None:
    async with house() as h:
        wire = Wire(h.url)
        await wire.mend()
        async with looking(browser, wire.url) as (page, _):
            await shows(page, "#live", "live")
            await wire.cut()
            await shows(page, "#banner", "The gateway does not answer.", "since")
            await shows(page, "#live", "not connected")
            await shows(page, "#fleet", "qwen36")
            await h.sims["gemma4"].kill()
            await h.gateway.until(lambda: h.gateway.state("gemma4") is State.DOWN)
            await wire.mend()
            await shows(page, "#live", "live")
            await shows(page, row("gemma4"), "down")
            await lacks(page, "#banner", "does not answer")
        await wire.cut()


# -- keys and buttons -------------------------------------------------------------------------------------------------


async def test_with_clients_it_asks_for_a_key_and_keeps_it_in_the_tab(browser: Browser) -> None:
    async with house(CLIENTS) as h, looking(browser, h.url) as (page, seen):
        await page.wait_for_selector("#key-form:not([hidden])")
        assert await page.locator("#key").evaluate("e => e === document.activeElement")
        assert not await page.locator("#main").is_visible()
        assert "qwen36" not in await page.content()
        await page.keyboard.type("wrong")
        await page.keyboard.press("Enter")
        await shows(page, "#key-error", "not one of the gateway's")
        await page.keyboard.type("hermes-key")
        await page.keyboard.press("Enter")
        await shows(page, row("qwen36"), "ready")
        await shows(page, "#tools", "as hermes")
        assert await page.get_by_role("button", name="Drain").count() == 0
        stored = "[JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie, location.href]"
        session, local, cookies, href = await page.evaluate(stored)
        assert "hermes-key" in session
        assert (local, cookies, href) == ("{}", "", h.url + "/")
        assert all("-key" not in asked for asked in seen.asked)
        await page.get_by_role("button", name="Forget the key").click()
        await page.wait_for_selector("#key-form:not([hidden])")
        assert await page.evaluate("sessionStorage.length") == 0


async def test_an_admin_drains_and_resumes(browser: Browser) -> None:
    async with house(CLIENTS) as h, looking(browser, h.url) as (page, _):
        await page.fill("#key", "ops-key")
        await page.keyboard.press("Enter")
        page.on("dialog", lambda dialog: asyncio.ensure_future(dialog.accept()))
        await page.get_by_role("button", name="Drain gemma4").click()
        await shows(page, row("gemma4"), "draining", "Resume")
        await shows(page, "#notice", "gemma4 is draining; 0 under way there.")
        assert h.gateway.state("gemma4") is State.DRAINING
        await page.get_by_role("button", name="Resume gemma4").click()
        await shows(page, row("gemma4"), "ready", "Drain")
        await page.get_by_role("button", name="Probe qwen36").click()
        await shows(page, "#notice", "qwen36 was probed: ")


async def test_an_alias_is_tried_with_the_keyboard_alone(browser: Browser) -> None:
    async with house() as h, looking(browser, h.url) as (page, seen):
        await shows(page, "#aliases", "coder")
        await page.evaluate("document.getElementById('aliases-title').scrollIntoView()")
        for _ in range(20):
            await page.keyboard.press("Tab")
            if await page.evaluate("document.activeElement.getAttribute('aria-label')") == "Try coder":
                break
        await page.keyboard.press("Enter")
        await page.wait_for_selector("#try[open]")
        assert await page.evaluate("document.activeElement.id") == "try-text"
        await page.keyboard.type("<img src=x onerror=alert(1)> What is 12*17?")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await shows(page, "#try-state", "done")
        await shows(page, "#try-answer", "204")
        await shows(page, "#try-route", "answered by", "qwen36", "attempts", "first token", "request id")
        await page.get_by_role("button", name="Explain the plan").press("Enter")
        await shows(page, "#try-state", "would go to qwen36, then qwen8b")
        await page.keyboard.press("Escape")
        assert await page.locator("#try[open]").count() == 0
        assert await page.evaluate("document.activeElement.getAttribute('aria-label')") == "Try coder"
        seen.quiet(h.url)


async def test_a_try_that_is_refused_or_breaks_says_so(browser: Browser) -> None:
    async with house() as h, looking(browser, h.url) as (page, _):
        await page.get_by_role("button", name="Try writer").click()
        h.sims["gemma4"].fault("die_mid", after=2)
        await page.get_by_role("button", name="Send").click()
        await shows(page, "#try-state", "the stream broke:")  # the reason may be lost with the connection
        await h.sims["gemma4"].kill()
        await h.sims["qwen8b"].kill()
        await h.gateway.until(lambda: h.gateway.state("qwen8b") is State.DOWN)
        await page.get_by_role("button", name="Send").click()
        await shows(page, "#try-state", "refused (")


async def test_headings_tables_and_regions_have_names(browser: Browser) -> None:
    async with house() as h, looking(browser, h.url, width=390) as (page, _):
        await shows(page, row("qwen36"), "ready")
        roles = await page.locator("#fleet").aria_snapshot()
        assert "- table" in roles
        assert "rowheader" in roles, "cards on a phone are still rows of a table"
        levels = await page.evaluate("[...document.querySelectorAll('h1,h2')].filter(e => e.offsetParent).length")
        assert levels >= 7
        unnamed = "[...document.querySelectorAll('button')].filter(b => !b.textContent.trim() && !b.ariaLabel).length"
        assert await page.evaluate(unnamed) == 0
