"""No thread and no task of the gateway's own ends by an exception: it is logged, counted, begun anew and told."""

from __future__ import annotations

import ast
import asyncio
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.accounting.record import RequestRecord, Settler
from gateway.apps.alerts.alert import FleetPicture
from gateway.apps.alerts.alerts import AlertState
from gateway.apps.alerts.channels import AlertMessage, DeliveryResult
from gateway.apps.alerts.sender import AlertSender, RetryPolicy
from gateway.apps.tracing.traces import Exporter
from gateway.config.snapshot import Snapshot
from gateway.domain.health_state import State
from gateway.domain.request_timer import TICK, Pulse, RequestTimer
from gateway.metrics.registry import Metrics
from gateway.observe.log import EventLine, LogWriter
from gateway.supervision import Failures
from tests.raw_client import chat
from tests.scripted import Turn, json_answer, scripted
from tests.support import running_gateway
from tests.waiting import until, wait_until

PATIENCE = 20.0
SOURCES = Path(__file__).parents[1] / "gateway"


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.supervision.AGAIN", 0.01)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def counted(metrics: Metrics, part: str) -> float:
    return metrics.registry.get_sample_value("gateway_internal_failures_total", {"part": part}) or 0.0


class Defect(Exception):
    """One of ours, made for the test."""


def fails(times: int, then: Callable[[], object] = lambda: None) -> Callable[[], object]:
    """A function that raises so often, and then does `then`."""
    left = iter(range(times))

    def call() -> object:
        if next(left, None) is not None:
            raise Defect
        return then()

    return call


# -- the supervisor ---------------------------------------------------------------------------------------------------


async def test_a_task_that_fails_is_begun_anew(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    work = fails(3)

    async def run() -> None:
        work()

    async with asyncio.timeout(PATIENCE):
        await metrics.failures.task("history", run, "samples")
    assert counted(metrics, "history") == 3
    said = [
        record for record in caplog.records if "the task 'samples' failed inside the gateway" in record.getMessage()
    ]
    assert [record.exc_info is not None for record in said] == [True] * 3


async def test_a_cancelled_task_is_no_failure(metrics: Metrics) -> None:
    begun = asyncio.Event()

    async def run() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = metrics.failures.task("history", run)
    await begun.wait()
    task.cancel()
    assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        never_begun = metrics.failures.once("history", run())
        never_begun.cancel()
        await asyncio.gather(never_begun, return_exceptions=True)
    assert counted(metrics, "history") == 0


async def test_a_task_of_one_occasion_is_counted(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        raise Defect

    await asyncio.gather(metrics.failures.once("canary", run(), "canary a"), return_exceptions=True)
    await until(lambda: counted(metrics, "canary") == 1)
    assert any(record.exc_info for record in caplog.records)


def test_a_thread_that_fails_is_begun_anew(metrics: Metrics) -> None:
    stop, done = threading.Event(), threading.Event()
    thread = metrics.failures.thread("ledger", fails(3, done.set), stop)
    thread.start()
    assert done.wait(PATIENCE)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert counted(metrics, "ledger") == 3


def test_a_thread_that_only_ever_fails_ends_when_it_is_told_to(metrics: Metrics) -> None:
    stop = threading.Event()
    thread = metrics.failures.thread("ledger", fails(10**9), stop)
    thread.start()
    wait_until(lambda: counted(metrics, "ledger") >= 3, PATIENCE)
    stop.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


# -- who is supervised ------------------------------------------------------------------------------------------------

# Tasks that somebody waits for, and sees the exception of; or that belong to one request of a client.
WAITED_FOR = {
    "apps/probing/api.py": "a probe that was asked for: its error is the answer",
    "apps/batches/api.py": "ends with the reply that it watches",
    "apps/page/status.py": "ends with the reply that it watches",
    "http/connection.py": "one request",
    "proxy/exchange.py": "ends with the request that it watches",
    "apps/fleet/preflight/node.py": "runs as a program of its own, and a check that fails is an answer",
    "health/probe_client.py": "closes connections that nobody asks any more, awaited at the end",
    "health/prober.py": "first looks, awaited; a hurried look, which catches everything",
    "apps/alerts/channels.py": "one message to a service of apprise: its error is the answer",
    "apps/page/usage_report.py": "awaited, shielded",
    "observe/log.py": "has its own guard: what fails there cannot be logged there",
    "transport/event_loop.py": "a lookup: its error is the answer",
    "engines/ollama/pictures.py": "a lookup: its error is the answer",
    "engines/ollama/loading.py": "a load: its error is that of the requests that wait for it",
    "apps/tracing/traces.py": "the end of the exporter, joined",
    "apps/cluster/redis_connection.py": "a trip, awaited",
    "supervision.py": "the supervisor",
    "apps/describing/app.py": "descriptions of one request, awaited",
    "admission/slots.py": "looks at engines that a request waits for, awaited by it",
    "apps/fleet/pulling/node.py": "the lines of a command that the caller waits for, joined",
    "apps/control/lanes.py": "starts side by side, in a group that waits for them",
    "apps/control/api.py": "ends with the reply that it watches",
    "apps/batches/runner.py": "the lines of a batch, awaited by the task of the batch",
    "apps/cloud/stream.py": "a read, awaited; a close, which suppresses everything",
}
NO_SERVER = ("apps/bench/", "apps/importing/", "cli/")  # not part of a gateway that serves
BEGINS = {"create_task", "ensure_future", "Thread"}


def test_whatever_runs_in_the_background_is_supervised() -> None:
    found = set()
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES).as_posix()
        if name.startswith(NO_SERVER):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in BEGINS:
                found.add(name)
    assert found == WAITED_FOR.keys()


# -- each part --------------------------------------------------------------------------------------------------------


def into(written: list[bytes]) -> Callable[[bytes], int]:
    """Takes all that is written."""

    def write(data: bytes) -> int:
        written.append(data)
        return len(data)

    return write


def test_a_line_that_cannot_be_formed_takes_no_other_with_it(metrics: Metrics) -> None:
    written: list[bytes] = []

    def form(line: Any) -> bytes:
        if "odd" in line.text:
            raise Defect
        return str(line.text).encode() + b"\n"

    writer = LogWriter(form, into(written))
    writer.failures = metrics.failures
    try:
        for number in range(300):
            writer.put(EventLine(0.0, logging.INFO, "x", f"odd {number}" if number % 100 == 7 else f"line {number}"))
        wait_until(lambda: b"".join(written).count(b"\n") == 297, PATIENCE)
        writer.put(EventLine(0.0, logging.INFO, "x", "the last"))
        wait_until(lambda: b"the last" in b"".join(written), PATIENCE)
        assert writer._thread.is_alive()
    finally:
        writer.close()
    assert (writer.lost, counted(metrics, "log")) == (3, 3.0)


def test_the_thread_of_the_log_is_begun_anew(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    broken, drain = fails(2), LogWriter._drain

    def _drain(self: LogWriter) -> None:
        broken()
        drain(self)

    monkeypatch.setattr(LogWriter, "_drain", _drain)
    writer = LogWriter(lambda line: b"x\n", into(written))
    writer.failures = metrics.failures
    try:
        line = EventLine(0.0, logging.INFO, "x", "")
        for count in (1, 2):
            writer.put(line)
            wait_until(lambda: counted(metrics, "log") == count, PATIENCE)  # noqa: B023
        writer.put(line)
        wait_until(lambda: b"".join(written).count(b"x") == 3, PATIENCE)
    finally:
        writer.close()


class OddChannel:
    """Raises for the first message."""

    name = "odd"

    def __init__(self) -> None:
        self.sent: list[AlertMessage] = []

    async def send(self, client: Any, message: AlertMessage, now: float) -> DeliveryResult:
        self.sent.append(message)
        if len(self.sent) == 1:
            raise Defect
        return DeliveryResult(True, "taken")


async def test_a_message_that_cannot_be_sent_is_counted_and_the_next_is_sent(metrics: Metrics) -> None:
    channel: Any = OddChannel()
    client: Any = None
    sender = AlertSender(channel, client, RetryPolicy(), metrics.failures)
    try:
        for _ in range(2):
            sender.enqueue(AlertMessage((), "spark1", time.time()))
        await until(lambda: len(channel.sent) == 2)
        assert (sender.dropped, counted(metrics, "alerts")) == (1, 1.0)
    finally:
        await sender.close()


async def test_one_request_whose_time_cannot_be_looked_at_holds_up_no_other(metrics: Metrics) -> None:
    pulse, beats = Pulse(metrics.failures), asyncio.Event()
    task = asyncio.current_task()
    assert task is not None

    def broken() -> None:
        raise Defect

    first, second = RequestTimer(pulse, task, broken), RequestTimer(pulse, task, beats.set)
    first.beat_at = second.beat_at = first.now() + TICK
    async with asyncio.timeout(PATIENCE):
        await beats.wait()
    await until(lambda: counted(metrics, "pulse") == 1)
    second.close()


def test_spans_that_cannot_be_exported_are_counted(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = Exporter("http://127.0.0.1:1", metrics.failures)
    monkeypatch.setattr(exporter._otlp, "export", lambda spans: fails(1)())
    odd: Any = [object()]
    exporter.export(odd)
    assert (exporter.lost, counted(metrics, "traces")) == (1, 1.0)
    exporter.shutdown()


def broken_parts() -> Iterator[tuple[str, str]]:
    """(what is called now and then, the part that it is)."""
    yield "gateway.apps.page.history.History.sample", "history"
    yield "gateway.apps.alerts.app.Alerter.check", "alerts"
    yield "gateway.health.prober.Prober.check", "probe"
    yield "gateway.health.prober.Prober.look_at_engine", "probe"
    yield "gateway.health.canary_schedule.CanarySchedule._run", "canary"
    yield "gateway.apps.standby.standby.WarmStandby.look", "standby"


@pytest.mark.parametrize(("what", "part"), list(broken_parts()), ids=lambda value: value.rpartition(".")[2])
async def test_a_part_that_fails_is_counted_and_goes_on(
    what: str, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a defect of ours, the first two times."""
    from pkgutil import resolve_name

    owner, _, name = what.rpartition(".")
    kind, real, calls = resolve_name(owner), resolve_name(what), []
    broken = fails(2)

    def odd(self: Any, *args: Any, **more: Any) -> Any:
        calls.append(time.monotonic())
        broken()
        return real(self, *args, **more)

    monkeypatch.setattr(kind, name, odd)
    monkeypatch.setattr("gateway.apps.page.history.EVERY", 0.02)
    monkeypatch.setattr("gateway.apps.alerts.app.CHECK_EVERY", 0.02)
    monkeypatch.setattr("gateway.apps.standby.standby.SELDOM", 0.02)
    monkeypatch.setattr("gateway.health.engine_look.MOVING", 0.02)

    async def script(turn: Turn) -> None:
        message = {"role": "assistant", "content": "204"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        await turn.send(json_answer({"id": "x", "model": "m", "choices": [choice]}))

    async with scripted(script) as backend:
        routes = f"backends: {{a: {{url: '{backend.url}', health: {{every: 50ms, canary: 50ms}}}}}}"
        async with running_gateway(routes) as gateway:
            gateway.gateway.apps.alerts.check_every = 0.02
            await gateway.until(lambda: gateway.metric("gateway_internal_failures_total", part=part) >= 2)
            before = len(calls)
            await gateway.until(lambda: len(calls) >= before + 1)
            reply = await gateway.client.post("/v1/chat/completions", json=chat("a"))
            assert reply.status_code == 200
    assert any(record.exc_info and "failed inside the gateway" in record.getMessage() for record in caplog.records)


async def test_a_request_that_cannot_be_counted_is_answered_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Settler, record: RequestRecord) -> int:
        raise Defect

    monkeypatch.setattr(Settler, "settle", broken)

    async def script(turn: Turn) -> None:
        choice = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
        await turn.send(json_answer({"id": "x", "model": "m", "choices": [choice]}))

    async with (
        scripted(script) as backend,
        running_gateway(f"backends: {{a: {{url: '{backend.url}'}}}}") as gateway,
    ):
        for count in (1, 2):
            reply = await gateway.client.post("/v1/chat/completions", json=chat("a"))
            assert reply.json()["choices"][0]["message"]["content"] == "hello"
            await gateway.until(lambda: gateway.metric("gateway_internal_failures_total", part="settle") == count)  # noqa: B023
        assert gateway.state("a") is State.READY


# -- told -------------------------------------------------------------------------------------------------------------


def test_a_failure_is_told_once_and_further_ones_hourly() -> None:
    state = AlertState()
    hour = state.timing.failed_again
    told = []
    for now, count in (
        (0.0, 0),
        (2.0, 1),
        (4.0, 1),
        (6.0, 5),
        (hour, 5),
        (hour + 3.0, 6),
        (2 * hour, 6),
        (9 * hour, 6),
    ):
        alerts = state.step(now, FleetPicture(failed={"ledger": count}))
        told += [(now, alert.kind, alert.name) for alert in alerts]
    assert told == [(2.0, "internal_failure", "ledger"), (hour + 3.0, "internal_failure", "ledger")]


async def test_the_alerter_sees_what_failed() -> None:
    async with running_gateway("backends: {a: {url: 'http://127.0.0.1:1'}}") as gateway:
        assert isinstance(gateway.gateway.snapshot, Snapshot)
        gateway.gateway.metrics.failures.count("ledger")
        assert gateway.gateway.failed_parts() == {"ledger": 1}


def test_without_a_counter_it_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise Defect
    except Defect:
        Failures().note("x", "something")
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
