"""Engines that hang, and when the gateway restarts them."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from gateway.apps.control.recovery import Hang, why_not_now
from gateway.config.load import load_text
from gateway.config.snapshot import Recover
from gateway.domain.health_state import State
from tests.apps.control.node import fleet

RECOVER = Recover(after=0.0, max=1, backoff=60.0)
DAILY = "{daily: [a], ds4: [c]}"


@pytest.mark.parametrize(
    ("hang", "why"),
    [
        (Hang(), "not for long enough"),
        (Hang(since=999.0), "not for long enough"),
        (Hang(since=900.0), ""),
        (Hang(since=900.0, until=1001.0), "waits for its backoff"),
        (Hang(since=900.0, restarts=deque([990.0, 995.0])), "restarted 2 times within an hour (recover.max)"),
        (Hang(since=900.0, restarts=deque([-2700.0, 995.0])), ""),
    ],
)
def test_a_restart_waits_for_its_time(hang: Hang, why: str) -> None:
    assert why_not_now(hang, Recover(after=60.0, max=2, backoff=300.0), 1000.0) == why


def test_the_keys_have_defaults_and_units() -> None:
    routes = "backends: {{a: {{url: 'http://127.0.0.1:9', launch: {{command: vllm serve m --port 9}}, recover: {}}}}}"
    found = load_text(routes.format("{}"), environ={}).snapshot.backends["a"].recover
    assert found == Recover(after=120.0, max=3, backoff=300.0)
    found = load_text(routes.format("{after: 5m, max: 2 per hour}"), environ={}).snapshot.backends["a"].recover
    assert found == Recover(after=300.0, max=2)


async def test_an_engine_that_hangs_is_restarted_once_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, there, node):
        control, state = gateway.gateway.apps.control, gateway.gateway.fleet["a"]
        recovery, operations = control.recovery, control.operations
        node.says("NCCL WARN something", "the engine's last line")

        async def look() -> None:
            await recovery._look(state, RECOVER)

        await look()
        assert there.orders == [], "it is well"
        state.evidence.stalled("no progress for 20 s")
        node.unit("a", "ActiveState=activating", "SubState=start-post")
        await look()
        node.unit("a")
        await look()
        assert there.orders == [], "it loads, or is down"
        node.unit("a", "ActiveState=active", "SubState=running")
        await look()
        await operations.finished()
        done = operations.latest
        assert (done.state, done.cause, done.kind) == ("done", "recovery", "restart")
        assert there.orders == ["stop a", "start a"]
        assert "its last words: the engine's last line" in done.notes[0]
        assert "restarted, 1 of 1 within an hour" in recovery.told["a"]
        assert any(event.reason == "recovery of a" for event in gateway.gateway.events)
        await gateway.until(lambda: gateway.state("a") is State.READY)
        await look()
        assert "a" not in recovery.told
        state.evidence.stalled("no progress for 20 s")
        await look()
        assert there.orders == ["stop a", "start a"]
        assert "is left to people: restarted 1 times within an hour (recover.max)" in recovery.told["a"]


@pytest.mark.parametrize("how", ["drained", "gone"])
async def test_what_is_drained_or_gone_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, there, _):
        recovery, state = gateway.gateway.apps.control.recovery, gateway.gateway.fleet["a"]
        if how == "drained":
            state.evidence.stalled("no progress for 20 s")
            state.evidence.drain()
        else:
            await there.sims["a"].kill()
            await gateway.until(lambda: gateway.state("a") is State.DOWN)
        await recovery._look(state, RECOVER)
        assert recovery._hangs["a"].since is None
