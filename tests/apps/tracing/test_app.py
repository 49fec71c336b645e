"""Traces are made as the snapshot in force says."""

from __future__ import annotations

from dataclasses import replace

from simulator import SimVllm
from tests.apps.tracing.otlp import Receiver
from tests.apps.tracing.test_traces import CHAT, sent, traced
from tests.raw_client import chat


async def test_a_new_snapshot_may_trace_elsewhere_or_not_at_all(receiver: Receiver) -> None:
    async with traced(SimVllm("a"), to="http://127.0.0.1:9") as gateway:
        core = gateway.gateway
        assert core.snapshot.traces is not None
        endpoint = type(core.snapshot.traces.endpoint)(receiver.url)
        core.snapshot = replace(core.snapshot, traces=replace(core.snapshot.traces, endpoint=endpoint))
        await core.apps.follow(core.snapshot)
        await gateway.client.post(CHAT, json=chat("chain"))
        await sent(gateway, receiver)
        core.snapshot = replace(core.snapshot, traces=None)
        await core.apps.follow(core.snapshot)
        assert core.apps.tracing.tracing is None
        assert (await gateway.client.post(CHAT, json=chat("chain"))).status_code == 200
        await gateway.until(gateway.idle)
    assert len(receiver.spans) == 2
