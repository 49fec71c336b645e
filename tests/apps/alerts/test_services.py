"""Alerts through apprise: messages that arrive at a real server, bounds, and URLs that nothing shows."""

from __future__ import annotations

import logging
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.apps.alerts.alert import Alert
from gateway.apps.alerts.channels import (
    AlertMessage,
    DeliveryResult,
    ServiceChannel,
    WebhookChannel,
    channels_of,
    new_client,
)
from gateway.apps.alerts.sender import AlertSender, RetryPolicy
from gateway.cli.main import cli
from gateway.config.load import load_text
from gateway.config.problems import ConfigError
from gateway.config.secret import Secret
from tests.apps.alerts.hook import HANG, Hook, hooked, refusal
from tests.waiting import until

B = 'backends: {q: {url: "http://x:1"}}\n'
TOKEN = "sekret-t0ken"


def message(text: str = "q is down", good: bool = False) -> AlertMessage:
    return AlertMessage((Alert("backend_down", "q", text, time.time(), good=good),), "sparkgw", time.time())


def service(hook: Hook, scheme: str = "json", patience: float = 10.0, extra: str = "") -> ServiceChannel:
    return ServiceChannel(Secret(f"{scheme}://user:{TOKEN}@{hook.url.partition('://')[2]}/{TOKEN}{extra}"), 1, patience)


async def sent(channel: ServiceChannel, what: AlertMessage | None = None) -> DeliveryResult:
    async with new_client() as client:
        return await channel.send(client, what or message(), time.time())


@pytest.mark.parametrize(("scheme", "key"), [("json", "message"), ("ntfy", "message")])
async def test_a_service_gets_the_text(scheme: str, key: str) -> None:
    async with hooked() as hook:
        assert await sent(service(hook, scheme)) == DeliveryResult(True, "accepted")
        assert hook.asked[0].json[key] == "[sparkgw] q is down"
        assert hook.asked[0].json["title"] == "gateway on sparkgw"


@pytest.mark.parametrize(("good", "kind"), [(True, "success"), (False, "warning")])
async def test_what_is_over_is_a_success(good: bool, kind: str) -> None:
    async with hooked() as hook:
        await sent(service(hook), message(good=good))
        assert hook.asked[0].json["type"] == kind


@pytest.mark.parametrize(
    ("status", "retry"), [("401 No", False), ("404 No", False), ("429 No", True), ("503 No", True)]
)
async def test_a_refusal_is_told_from_a_failure_that_passes(status: str, retry: bool) -> None:
    async with hooked(refusal(status, body={"error": TOKEN})) as hook:
        answer = await sent(service(hook))
        assert not answer.ok
        assert f"error={status[:3]}" in answer.detail
        assert answer.retry is retry


async def test_a_url_of_several_recipients_is_not_tried_again() -> None:
    async with hooked(refusal("503 No")) as hook:
        assert not (await sent(service(hook, "ntfy", extra=f"/{TOKEN}2"))).retry


async def test_no_log_and_no_answer_shows_a_part_of_the_url(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with hooked(refusal("403 No", body={"error": TOKEN})) as hook:
        for scheme in ("json", "ntfy", "jsons"):
            channel = service(hook, scheme)
            answer = await sent(channel)
            assert not answer.ok
            assert TOKEN not in answer.detail + channel.name + repr(channel.url)
    nowhere = await sent(ServiceChannel(Secret(f"json://{TOKEN}.invalid/{TOKEN}?x={TOKEN}"), 1))
    assert (nowhere.ok, nowhere.retry) == (False, True)
    assert TOKEN not in nowhere.detail + caplog.text


async def test_a_service_that_hangs_has_one_thread_and_its_answer_counts_when_it_comes() -> None:
    async with hooked(HANG) as hook:
        channel, first, before = service(hook, patience=0.2, extra="?cto=1&rto=2"), message(), threading.active_count()
        assert await sent(channel, first) == DeliveryResult(False, "no answer within 0.2 s", retry=True)
        assert await sent(channel, first) == DeliveryResult(False, "no answer within 0.2 s", retry=True)
        assert await sent(channel) == DeliveryResult(False, "still busy with the message before", retry=True)
        assert len(hook.asked) == 1
        assert threading.active_count() <= before + 1


async def test_a_service_that_hangs_harms_no_other_channel_and_is_counted() -> None:
    async with hooked(HANG) as slow, hooked() as hook, new_client() as client:
        policy = RetryPolicy(first=0.01, most=0.02, give_up=0.3)
        hanging = AlertSender(service(slow, patience=0.1, extra="?rto=2"), client, policy)
        works = AlertSender(WebhookChannel(Secret(f"{hook.url}/x")), client, policy)
        for sender in (hanging, works):
            sender.enqueue(message())
        await hook.until_asked(1)
        await until(lambda: hanging.dropped)
        assert works.dropped == 0
        for sender in (hanging, works):
            await sender.close()


def test_each_url_is_one_channel() -> None:
    text = f"{B}alerts: {{notify: ['ntfy://{TOKEN}', 'json://h/{TOKEN}', 'ntfy://{TOKEN}']}}\n"
    snapshot = load_text(text, "routes.yaml", {}).snapshot
    found = channels_of(snapshot.alerts)
    assert [channel.name for channel in found] == ["notify 1 (ntfy)", "notify 2 (json)"]
    assert TOKEN not in repr(snapshot.alerts)
    assert found == channels_of(snapshot.alerts)


@pytest.mark.parametrize("url", [TOKEN, f"nonsense://{TOKEN}", f"slack://{TOKEN}", f"://{TOKEN}"])
def test_a_url_that_apprise_does_not_take_is_an_error_that_does_not_show_it(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError) as raised:
        load_text(f"{B}alerts: {{notify: ['{url}']}}\n", "routes.yaml", {})
    (problem,) = raised.value.problems
    assert str(problem).startswith("routes.yaml:2  alerts.notify: number 1 is not ")
    assert TOKEN not in str(problem) + caplog.text


def test_without_apprise_check_and_the_test_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    config = tmp_path / "routes.yaml"
    config.write_text(f"{B}alerts: {{notify: ['ntfy://{TOKEN}']}}\n")
    for command in (["check"], ["alerts", "test"]):
        done = CliRunner().invoke(cli, [*command, "--config", str(config)])
        assert "apprise is not installed" in done.output
        assert "pip install 'spark-gateway[alerts]'" in done.output
        assert TOKEN not in done.output
