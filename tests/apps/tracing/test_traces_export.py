"""Spans on their way to a receiver: one that takes nothing, one that is back, and the end of the gateway."""

from __future__ import annotations

import asyncio
import logging

import pytest

from bench.ports import free_ports
from simulator import SimVllm
from tests.apps.tracing.otlp import Receiver, receiving
from tests.apps.tracing.test_traces import CHAT, sent, traced
from tests.raw_client import chat


async def test_a_receiver_that_takes_nothing_is_told_of_once_and_left_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("gateway.apps.tracing.traces.PATIENCE", 0.5)
    port = free_ports(1)
    async with traced(SimVllm("a"), to=f"http://127.0.0.1:{port}/secret-path") as gateway:
        tracing = gateway.gateway.apps.tracing.tracing
        assert tracing is not None
        for _ in range(2):
            assert (await gateway.client.post(CHAT, json=chat("chain"))).status_code == 200
            await gateway.until(gateway.idle)
            await asyncio.to_thread(tracing.flush)
            tracing.exporter._rest_until = 0.0  # its rest is over
        assert tracing.exporter.lost == 4
        with receiving(port) as receiver:
            receiver.status = 404
            await gateway.client.post(CHAT, json=chat("chain"))
            await gateway.until(gateway.idle)
            await asyncio.to_thread(tracing.flush)
            assert receiver.posts == 1
            assert tracing.exporter.resting
            await gateway.client.post(CHAT, json=chat("chain"))
            await gateway.until(gateway.idle)
            assert tracing.exporter.lost == 8  # at once: nothing is queued for it
            tracing.exporter.export([])  # what was queued before
            assert receiver.posts == 1  # left alone meanwhile
    said = [
        record.getMessage() for record in caplog.records if "trace" in record.name or "opentelemetry" in record.name
    ]
    text = f"traces: 127.0.0.1:{port} takes no spans (ConnectionError): requests go on without, and it is tried again"
    assert said == [text]


async def test_a_receiver_that_is_back_gets_the_next_spans(
    caplog: pytest.LogCaptureFixture, receiver: Receiver
) -> None:
    caplog.set_level(logging.INFO)
    async with traced(SimVllm("a"), to=receiver.url) as gateway:
        tracing = gateway.gateway.apps.tracing.tracing
        assert tracing is not None
        receiver.status = 400
        await gateway.client.post(CHAT, json=chat("chain"))
        await gateway.until(gateway.idle)
        await asyncio.to_thread(tracing.flush)
        receiver.status = 200
        tracing.exporter._rest_until = 0.0  # its rest is over
        await gateway.client.post(CHAT, json=chat("chain"))
        await sent(gateway, receiver)
    said = [record.getMessage() for record in caplog.records if record.name == "gateway.traces"]
    assert "(answered 400)" in said[0]
    assert said[1].endswith("takes spans again; lost: 2")


async def test_what_has_ended_is_sent_before_the_gateway_stops(receiver: Receiver) -> None:
    async with traced(SimVllm("a"), to=receiver.url) as gateway:
        await gateway.client.post(CHAT, json=chat("chain"))
    assert len(receiver.spans) == 2
