"""Alerts of a running gateway, sent to a real server: a backend dies, and comes back."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import pytest

from gateway.accounting.accounts import today
from gateway.apps.alerts.alert import Alert, Timing
from gateway.apps.alerts.sender import RetryPolicy
from gateway.apps.page import history
from gateway.config.snapshot import Alerts, Secret
from simulator import SimVllm
from simulator.audio import SimAudio
from tests.apps.alerts.hook import HANG, OK, Hook, hooked, refusal
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway

QUICK = Timing(down_for=0.3, settle=0.1, cloud_again=0.4, nothing_again=0.4, rejected_for=0.2)
FAST = "defaults: {health: {every: 50ms, fail_after: 2, recover_after: 2}}\n"


@dataclass
class Fleet:
    gateway: RunningGateway
    hook: Hook
    sims: dict[str, SimVllm]


@asynccontextmanager
async def fleet(
    names: str, more: str = "", *answers: bytes, alerts: str = "webhook: '{url}/hook'"
) -> AsyncIterator[Fleet]:
    """Backends of these names, the aliases of `more`, and alerts that look several times a second."""
    async with AsyncExitStack() as stack:
        hook = await stack.enter_async_context(hooked(*answers))
        sims = {name: SimVllm(name) for name in names.split()}
        urls = {name: await stack.enter_async_context(sim.serve()) for name, sim in sims.items()}
        backends = "".join(f"  {name}: {{url: '{url}'}}\n" for name, url in urls.items())
        routes = f"{FAST}backends:\n{backends}{more}\nalerts: {{{alerts.replace('{url}', hook.url)}}}\n"
        gateway = await stack.enter_async_context(running_gateway(routes.replace("{hook}", hook.url)))
        await gateway.until_ready(*sims)
        await reopened(gateway)
        yield Fleet(gateway, hook, sims)


async def reopened(gateway: RunningGateway) -> None:
    """The gateway's own alerter, only faster."""
    alerter = gateway.gateway.apps.alerts
    await alerter.close()
    alerter.state.timing = QUICK
    alerter.retries = RetryPolicy(first=0.01, most=0.05)
    alerter.check_every = 0.02
    await alerter.open()


# -- what is told -----------------------------------------------------------------------------------------------------


async def test_a_backend_that_dies_and_comes_back_is_told_of_twice() -> None:
    async with fleet("a b", "aliases: {w: [b]}") as f:
        await f.sims["a"].kill()
        await f.hook.until(lambda: ("backend_down", "a") in f.hook.told())
        assert f.hook.told() == [("backend_down", "a")], "and not once more for the name that it is offered under"
        assert "a is down: " in f.hook.texts()[-1]
        await f.sims["a"].revive()
        await f.hook.until(lambda: ("backend_back", "a") in f.hook.told())
        assert f.hook.told() == [("backend_down", "a"), ("backend_back", "a")]


async def test_five_backends_that_die_at_once_are_one_message_and_so_is_their_return() -> None:
    names = "a b c d e"
    async with fleet(f"{names} f", "aliases: {w: [a, f], x: [b, f], y: [c]}") as f:
        for name in names.split():
            await f.sims[name].kill()
        await f.hook.until_asked(1)
        assert {name for kind, name in f.hook.told() if kind == "backend_down"} == set(names.split())
        text = f.hook.texts()[0]
        assert "5 of 6 backends on 127.0.0.1 are down. a, b, c, d, e: /health: Connect call failed" in text
        assert "alias y has nothing left" in text
        assert "aliases w, x are on a fallback: f serves them" in text
        for name in names.split():
            await f.sims[name].revive()
        await f.hook.until(partial(_was_told, f.hook, "alias_back", "y"))
        (end,) = [text for text in f.hook.texts() if " back, after " in text]
        assert "a, b, c, d, e are back, after " in end
        assert end.endswith("meanwhile nobody did")


async def test_an_audio_server_and_a_plain_one_are_told_of_too() -> None:
    async with AsyncExitStack() as stack:
        speech, plain = SimAudio("speech", ["speech"]), SimVllm("plain")
        urls = [await stack.enter_async_context(sim.serve()) for sim in (speech, plain)]
        more = f"  speech: {{engine: http, url: '{urls[0]}', serves: [speech]}}\n"
        more += f"  plain: {{engine: openai, url: '{urls[1]}', cloud: false}}\naliases: {{speak: [speech]}}"
        f = await stack.enter_async_context(fleet("a", more))
        await f.gateway.until_ready("speech", "plain")
        for name, sim in (("speech", speech), ("plain", plain)):
            await sim.kill()
            await f.hook.until(partial(_was_told, f.hook, "backend_down", name))
            await sim.revive()
            await f.hook.until(partial(_was_told, f.hook, "backend_back", name))


def _was_told(hook: Hook, kind: str, name: str) -> bool:
    return (kind, name) in hook.told()


async def test_an_alias_that_falls_back_is_told_of_and_so_is_its_return() -> None:
    async with fleet("a b", "aliases: {w: [a, b]}") as f:
        gateway = f.gateway
        assert gateway.metric("gateway_alias_on_fallback", alias="w") == 0.0
        await f.sims["a"].kill()
        await f.hook.until(lambda: ("alias_fallback", "w") in f.hook.told())
        assert gateway.metric("gateway_alias_on_fallback", alias="w") == 1.0
        assert any("a is down: " in text and "alias w is on a fallback: b serves it" in text for text in f.hook.texts())
        await f.sims["a"].revive()
        await f.hook.until(lambda: ("alias_back", "w") in f.hook.told())
        assert gateway.metric("gateway_alias_on_fallback", alias="w") == 0.0


async def test_a_backend_whose_drafts_are_rejected_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "EVERY", 0.02)
    drafting = SimVllm("b", spec_tokens=2)  # of which half are accepted
    async with drafting.serve() as url:
        alerts = "webhook: '{url}/hook', draft_acceptance: 0.9"
        async with fleet("a", f"  b: {{url: '{url}'}}", alerts=alerts) as f:
            kept = f.gateway.gateway.apps.page
            await f.gateway.until(lambda: kept.latest["backends"].get("b", {}).get("kv") is not None)
            answer = await f.gateway.client.post("/v1/chat/completions", json=chat("b", "400 words"))
            assert answer.status_code == 200
            await f.hook.until(partial(_was_told, f.hook, "draft_acceptance", "b"))
            assert "b accepts only 50% of its draft tokens" in f.hook.texts()[-1]


async def test_silence_means_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day of looks, on a clock of their own; what is told afterwards is the first message."""
    async with fleet("a b", "aliases: {w: [a, b]}") as f:
        alerter, now = f.gateway.gateway.apps.alerts, time.monotonic()
        monkeypatch.setattr("gateway.apps.alerts.app.time", SimpleNamespace(monotonic=lambda: now, time=time.time))
        for _ in range(24 * 60):
            now += 60.0
            await alerter.check()
        alerter.send([Alert("backend_down", "made up", "made up", 0.0)])
        await f.hook.until_asked(1)
        assert f.hook.told() == [("backend_down", "made up")]


async def test_a_cloud_is_told_of_again_and_again() -> None:
    async with AsyncExitStack() as stack:
        abroad = SimVllm("abroad")
        url = await stack.enter_async_context(abroad.serve())
        cloud = f"  abroad: {{engine: openai, url: '{url}', cloud: true, model: m}}\naliases: {{w: [a, abroad]}}"
        f = await stack.enter_async_context(fleet("a", cloud))
        await f.sims["a"].kill()
        await f.hook.until(lambda: f.hook.told().count(("alias_cloud", "w")) >= 3)
        assert "alias w is on a cloud, its prompts leave the LAN: abroad serves it" in " ".join(f.hook.texts())
        assert "alias w is still on a cloud" in f.hook.texts()[-1]


async def test_an_on_demand_backend_that_is_not_there_is_no_news() -> None:
    async with fleet("a", "  big: {url: 'http://127.0.0.1:1', run: on_demand}\naliases: {w: [big, a]}") as f:
        await f.sims["a"].kill()
        await f.hook.until(lambda: {("backend_down", "a"), ("alias_nothing", "w")} <= set(f.hook.told()))
        assert not [told for told in f.hook.told() if told[1] == "big"]


async def test_a_budget_that_is_nearly_spent_is_told() -> None:
    cloud = "  fireworks: {engine: openai, url: 'http://127.0.0.1:1', cloud: true, model: m, budget: 5 USD/day}\n"
    more = cloud + "clients: {hermes: {key: k, budget: 10 USD/day}}"
    async with fleet("a", more) as f:
        f.gateway.gateway.accounts.budgets.add("fireworks", "hermes", 4.5, today())
        await f.hook.until_asked(1)
        assert f.hook.told() == [("budget", "fireworks")]
        f.gateway.gateway.accounts.budgets.add("fireworks", "hermes", 4.0, today())
        await f.hook.until_asked(2)
        assert f.hook.told()[1:] == [("budget", "fireworks"), ("budget", "client hermes")]
        assert "fireworks has used 100% of its budget" in f.hook.texts()[1]
        assert "client hermes has used 80% of its budget" in f.hook.texts()[1]


async def test_an_edit_that_is_refused_and_one_that_is_taken_are_told() -> None:
    async with fleet("a") as f:
        f.gateway.gateway.refused_edit = "routes.yaml:3  aliases.w: nonsense"
        await f.hook.until_asked(1)
        assert f.hook.told() == [("invalid_edit", "routes.yaml")]
        f.gateway.gateway.refused_edit = None
        await f.hook.until_asked(2)
        assert f.hook.told()[1:] == [("valid_edit", "routes.yaml")]


# -- how --------------------------------------------------------------------------------------------------------------


async def test_a_channel_that_fails_gets_it_later() -> None:
    async with fleet("a", "", refusal("500 No"), refusal("429 Slow down", "retry-after: 0"), OK) as f:
        f.gateway.gateway.refused_edit = "fireworks"
        await f.hook.until_asked(3)
        assert f.hook.texts()[0] == f.hook.texts()[1] == f.hook.texts()[2]


async def test_a_channel_that_hangs_holds_up_nobody() -> None:
    async with fleet("a", "aliases: {w: [a]}", HANG) as f:
        f.gateway.gateway.refused_edit = "fireworks"
        await f.hook.until_asked(1)
        answer = await f.gateway.client.post("/v1/chat/completions", json=chat("w"))
        assert answer.status_code == 200
        f.gateway.gateway.refused_edit = "claude"
        await f.gateway.until(lambda: len(f.gateway.gateway.apps.alerts.senders[0]._queue) == 1)


async def test_the_dead_mans_switch_is_held_while_the_gateway_lives() -> None:
    async with fleet("a", alerts="deadman: '{url}/ping/secret'") as f:
        await f.hook.until_asked(1)  # at the start
        alerter = f.gateway.gateway.apps.alerts
        await alerter.close()
        alerter.ping_every = 0.05
        await alerter.open()
        await f.hook.until_asked(6)
        assert {(asked.method, asked.path) for asked in f.hook.asked} == {("GET", "/ping/secret")}


async def test_a_dead_mans_switch_that_does_not_answer_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.alerts")
    async with fleet("a", "", refusal("500 No"), alerts="deadman: '{url}/ping/secret'") as f:
        alerter = f.gateway.gateway.apps.alerts
        await alerter.close()
        alerter.ping_every = 0.02
        await alerter.open()
        await f.hook.until_asked(5)
        f.hook.answers = (OK,)
        await f.hook.until_asked(len(f.hook.asked) + 3)
    told = [record.getMessage() for record in caplog.records if "deadman" in record.getMessage()]
    assert told[-2:] == ['deadman (127.0.0.1): 500: {"ok": false}', "deadman (127.0.0.1): 200"]
    assert len(told) <= 3  # the first alerter may have said so, too


async def test_a_new_file_counts_from_the_next_look_on() -> None:
    async with fleet("a") as f, hooked() as other:
        gateway = f.gateway.gateway
        alerter = gateway.apps.alerts
        await alerter.check()
        (first,) = alerter.senders
        gateway.snapshot = replace(gateway.snapshot, alerts=Alerts(webhook=Secret(other.url + "/hook")))
        f.gateway.gateway.refused_edit = "fireworks"
        await other.until_asked(1)
        assert first not in alerter.senders
        assert f.hook.asked == []
        (kept,) = alerter.senders
        more = replace(gateway.snapshot.alerts, telegram_token=Secret("t"), telegram_chat="1")
        alerter.telegram = other.url
        gateway.snapshot = replace(gateway.snapshot, alerts=more)
        f.gateway.gateway.refused_edit = "claude"
        await other.until_asked(3)
        assert kept in alerter.senders


async def test_without_channels_nothing_counts_as_told() -> None:
    async with fleet("a", alerts="") as f:
        gateway = f.gateway.gateway
        gateway.refused_edit = "fireworks"
        await gateway.apps.alerts.check()
        gateway.snapshot = replace(gateway.snapshot, alerts=Alerts(webhook=Secret(f.hook.url + "/hook")))
        await f.hook.until_asked(1)
        assert f.hook.told() == [("invalid_edit", "routes.yaml")]


async def test_the_gateway_begins_by_itself() -> None:
    async with hooked() as hook:
        routes = f"backends: {{a: {{url: 'http://127.0.0.1:1'}}}}\nalerts: {{deadman: '{hook.url}/ping'}}\n"
        async with running_gateway(routes) as gateway:
            await hook.until_asked(1)
        assert gateway.gateway.apps.alerts._tasks == [], "and ends with it"
