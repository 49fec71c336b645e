"""Alerts on their way: what channels are sent, and what happens when they do not take it. Against a real server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.apps.alerts import channels
from gateway.apps.alerts.alert import Alert
from gateway.apps.alerts.channels import (
    AlertMessage,
    Channel,
    DeadmanChannel,
    TelegramChannel,
    WebhookChannel,
    channels_of,
    for_slack,
    new_client,
    without,
)
from gateway.apps.alerts.sender import AlertSender, RetryPolicy
from gateway.config.snapshot import Alerts, Secret
from tests.apps.alerts.hook import OK, PATIENCE, Hook, hooked, refusal

TOKEN = "123456:very-secret-token"
QUICK = RetryPolicy(first=0.01, most=0.05, give_up=PATIENCE)


def message(*texts: str, at: float | None = None) -> AlertMessage:
    alerts = [Alert("backend_down", "a", text, 0.0) for text in texts or ("a is down",)]
    return AlertMessage(tuple(alerts), "spark1", time.time() if at is None else at)


@asynccontextmanager
async def sender_to(channel: Channel, patience: RetryPolicy = QUICK) -> AsyncIterator[AlertSender]:
    async with new_client() as client:
        sender = AlertSender(channel, client, patience)
        try:
            yield sender
        finally:
            await sender.close()


def webhook(hook: Hook) -> WebhookChannel:
    return WebhookChannel(Secret(hook.url + "/services/very-secret-path?key=very-secret-query"))


# -- what is sent -----------------------------------------------------------------------------------------------------


async def test_a_webhook_gets_a_text_for_slack_and_each_alert() -> None:
    async with hooked() as hook, sender_to(webhook(hook)) as sender:
        sender.enqueue(message("a is down: <think> & so on", "b is down"))
        await hook.until_asked(1)
        asked = hook.asked[0]
        assert (asked.method, asked.path) == ("POST", "/services/very-secret-path?key=very-secret-query")
        body = asked.json
        assert body["text"] == "[spark1] a is down: &lt;think&gt; &amp; so on\nb is down"
        assert body["alerts"] == [
            {
                "kind": "backend_down",
                "name": "a",
                "text": "a is down: <think> & so on",
                "good": False,
                "cause": "",
                "do": "",
            },
            {"kind": "backend_down", "name": "a", "text": "b is down", "good": False, "cause": "", "do": ""},
        ]
        assert body["gateway"] == "spark1"
        assert abs(body["at"] - time.time()) < PATIENCE


async def test_telegram_gets_a_plain_message() -> None:
    async with hooked() as hook, sender_to(TelegramChannel(Secret(TOKEN), "-100123", hook.url)) as sender:
        sender.enqueue(message("a is down: <think>", "x" * 5000))
        await hook.until_asked(1)
        asked = hook.asked[0]
        assert (asked.method, asked.path) == ("POST", f"/bot{TOKEN}/sendMessage")
        assert asked.json["chat_id"] == "-100123"
        assert asked.json["text"].startswith("[spark1] a is down: <think>\nxxx")
        assert len(asked.json["text"]) == channels.TEXT_MOST
        assert "parse_mode" not in asked.json


def test_a_message_that_is_late_says_when_it_was_written() -> None:
    assert message(at=1_000_000_000.0).text(1_000_000_060.0) == "[spark1] a is down"
    assert message(at=1_000_000_000.0).text(1_000_000_200.0) == "[spark1] (2001-09-09 01:46 UTC) a is down"


def test_the_channels_are_those_of_the_file() -> None:
    assert channels_of(Alerts(deadman=Secret("http://x"))) == ()
    both = channels_of(Alerts(Secret(TOKEN), "1", Secret("http://x/y")))
    assert [channel.name for channel in both] == ["telegram (chat 1)", "webhook (x)"]


async def test_an_answer_without_end_is_not_read() -> None:
    endless = b"HTTP/1.1 404 No\r\ncontent-type: text/plain\r\ncontent-length: 1000000000\r\n\r\n" + b"x" * 20_000
    async with hooked(endless) as hook, new_client() as client:
        answer = await webhook(hook).send(client, message(), 0.0)
        assert answer.detail == "404: " + "x" * channels.DETAIL_MOST


# -- secrets ----------------------------------------------------------------------------------------------------------


async def test_no_secret_is_logged_or_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    path = "/services/very-secret-path?key=very-secret-query"
    async with new_client() as client:
        for secret in (f"/bot{TOKEN}/sendMessage", path):
            echo = {"echo": f"POST {secret}, that is {secret.partition('?')[2]}"}
            async with hooked(refusal("500 No", body=echo), refusal("404 No", body=echo), OK) as hook:
                telegram = secret.startswith("/bot")
                channel = (
                    TelegramChannel(Secret(TOKEN), "1", hook.url)
                    if telegram
                    else WebhookChannel(Secret(hook.url + path))
                )
                sender = AlertSender(channel, client, QUICK)
                sender.enqueue(message("first"))
                sender.enqueue(message("second"))
                await hook.until_asked(3)
                await sender.close()
        async with hooked(refusal("404 No", body={"echo": path})) as hook:
            answer = await DeadmanChannel(Secret(hook.url + path)).ping(client)
            assert "***" in answer.detail
        nowhere = await WebhookChannel(Secret("http://127.0.0.1:1" + path)).send(client, message(), 0.0)
    assert "tried again" in caplog.text
    assert "very-secret" not in caplog.text + answer.detail + nowhere.detail


def test_what_is_not_a_url_is_an_answer_too() -> None:
    async def send(url: str) -> str:
        async with new_client() as client:
            return (await WebhookChannel(Secret(url)).send(client, message(), 0.0)).detail

    for url in ("http://", "http://[::1", "https://x:99999/very-secret", "http://\u2028/very-secret"):
        said = asyncio.run(send(url))
        assert said
        assert "very-secret" not in said


def test_paths_and_queries_are_hidden_too() -> None:
    url = Secret("https://hooks.example.invalid/services/T1/B2?key=3")
    text = "no /services/T1/B2 at https://hooks.example.invalid/services/T1/B2?key=3 with key=3"
    assert without(text, (url,)) == "no *** at *** with ***"


def test_slacks_characters() -> None:
    assert for_slack("<a> & b") == "&lt;a&gt; &amp; b"
