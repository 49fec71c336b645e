"""Messages that a channel does not take at once: retries, waits, the bound of the queue."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from gateway.apps.alerts.channels import (
    DeliveryResult,
    WebhookChannel,
)
from gateway.apps.alerts.sender import QUEUE_MOST, RetryPolicy
from gateway.config.snapshot import Secret
from tests.apps.alerts.hook import HANG, OK, Hook, hooked, refusal
from tests.apps.alerts.test_channels import QUICK, message, sender_to, webhook
from tests.waiting import until


@pytest.mark.parametrize("status", ["500 Internal Server Error", "502 Bad Gateway", "408 Request Timeout"])
async def test_what_may_pass_is_tried_again(status: str) -> None:
    async with hooked(refusal(status), refusal(status), OK) as hook, sender_to(webhook(hook)) as sender:
        sender.enqueue(message("first"))
        sender.enqueue(message("second"))
        await hook.until_asked(4)
        assert [text.split()[1] for text in hook.texts()] == ["first", "first", "first", "second"]
        assert sender.dropped == 0


@pytest.mark.parametrize(
    "wait",
    [
        refusal("429 Too Many Requests", "retry-after: 1"),
        refusal("429 Too Many Requests", body={"ok": False, "parameters": {"retry_after": 1}}),
    ],
    ids=["header", "telegram"],
)
async def test_a_channel_is_not_asked_before_it_wants_to_be(wait: bytes) -> None:
    async with hooked(wait, OK) as hook, sender_to(webhook(hook)) as sender:
        sender.enqueue(message())
        await hook.until_asked(2)
        assert hook.asked[1].at - hook.asked[0].at >= 1.0
        assert sender.dropped == 0


@pytest.mark.parametrize("wait", [10**400, -1, "soon", None, [], {}, True, 1e308], ids=lambda wait: str(wait)[:9])
async def test_a_wait_that_is_no_time_costs_no_message(wait: object) -> None:
    busy = refusal("429 Too Many Requests", body={"ok": False, "parameters": {"retry_after": wait}})
    async with hooked(busy, OK) as hook, sender_to(webhook(hook), replace(QUICK, asked=0.1)) as sender:
        sender.enqueue(message())
        await hook.until_asked(2)
        assert sender.dropped == 0


async def test_a_wait_of_days_is_not_kept() -> None:
    days = refusal("429 Too Many Requests", "retry-after: 1000000")
    async with hooked(days, OK) as hook, sender_to(webhook(hook), replace(QUICK, asked=0.1)) as sender:
        sender.enqueue(message())
        await hook.until_asked(2)
        assert hook.asked[1].at - hook.asked[0].at >= 0.1


@pytest.mark.parametrize("begun", [HANG, b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n"], ids=["silent", "begun"])
async def test_a_channel_that_hangs_is_left_and_tried_again(begun: bytes) -> None:
    async with hooked(begun, OK) as hook, sender_to(replace(webhook(hook), patience=0.1)) as sender:
        sender.enqueue(message())
        await hook.until_asked(2)
        assert sender.dropped == 0


async def test_a_channel_that_is_not_there_is_tried_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hooked() as hook:
        port = int(hook.url.rpartition(":")[2])
    tries: list[DeliveryResult] = []
    send = WebhookChannel.send

    async def noted(*given: Any) -> DeliveryResult:
        tries.append(await send(*given))
        return tries[-1]

    monkeypatch.setattr(WebhookChannel, "send", noted)
    late = Hook((OK,))
    async with sender_to(WebhookChannel(Secret(f"http://127.0.0.1:{port}/x"))) as sender:
        sender.enqueue(message())
        await until(lambda: len(tries) >= 3)
        assert not any(answer.ok for answer in tries), "nobody is there"
        server = await asyncio.start_server(late.accept, "127.0.0.1", port)
        try:
            await late.until_asked(1)
        finally:
            server.close()
            await late.close()


@pytest.mark.parametrize("status", ["400 Bad Request", "403 Forbidden", "404 Not Found", "302 Found"])
async def test_a_refusal_is_logged_and_not_repeated(status: str, caplog: pytest.LogCaptureFixture) -> None:
    refused = refusal(status, body={"description": "chat not found"})
    async with hooked(refused, OK) as hook, sender_to(webhook(hook)) as sender:
        sender.enqueue(message("first"))
        sender.enqueue(message("second"))
        await hook.until_asked(2)
        assert [text.split()[1] for text in hook.texts()] == ["first", "second"]
        assert sender.dropped == 1
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "chat not found" in record.getMessage()


async def test_after_an_hour_a_message_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    patience = RetryPolicy(first=0.01, most=0.02, give_up=0.2)
    async with hooked(refusal("500 No")) as hook, sender_to(webhook(hook), patience) as sender:
        sender.enqueue(message("first"))
        await until(lambda: sender.dropped)
        hook.answers = (OK,)
        asked = len(hook.asked)
        sender.enqueue(message("second"))
        await hook.until_asked(asked + 1)
        assert hook.texts()[-1].endswith("second")
    assert "not accepted within" in caplog.text


async def test_the_queue_does_not_grow() -> None:
    async with hooked(HANG) as hook, sender_to(webhook(hook)) as sender:
        sender.enqueue(message("under way"))
        await hook.until_asked(1)
        for number in range(3 * QUEUE_MOST):
            sender.enqueue(message(str(number)))
        assert len(sender._queue) == QUEUE_MOST
        assert sender._queue[-1].alerts[0].text == str(3 * QUEUE_MOST - 1)
        assert sender.dropped == 2 * QUEUE_MOST
