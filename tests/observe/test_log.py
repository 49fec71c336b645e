"""The lines of the log in their two forms, and the thread that writes them."""

from __future__ import annotations

import json
import logging
import os
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.accounting.record import RequestLine
from gateway.domain.tokens import NO_TOKENS, Tokens
from gateway.observe import log as module
from gateway.observe.log import EventLine, LogWriter, QueueHandler, as_json, as_pretty
from gateway.routing.refusal import FailedAttempt

PATIENCE = 10.0
SERVED = RequestLine(
    at=1772434692.345678,
    id="my-request",
    client="hermes",
    alias="writer",
    endpoint="chat",
    stream=True,
    backend="qwen8b",
    attempts=2,
    outcome="200",
    detour=("fallback", "failed"),
    adapted=("max_tokens_clamped",),
    left=[FailedAttempt("gemma4", "failed", "refused the connection")],
    tokens=Tokens(1203, 45, 900, 7),
    queued=0.25,
    first_token=0.31,
    total=1.2,
)
REFUSED = replace(
    SERVED,
    alias="", backend="", attempts=0, outcome="model_not_found", detour=None, adapted=(), left=(), tokens=NO_TOKENS,
    queued=0.0, first_token=None, stream=False,
)  # fmt: skip


def test_a_served_request_says_all_of_it() -> None:
    assert json.loads(as_json(SERVED)) == {
        "time": "2026-03-02T06:58:12.345Z",
        "level": "warning",
        "event": "request",
        "id": "my-request",
        "client": "hermes",
        "alias": "writer",
        "endpoint": "chat",
        "stream": True,
        "backend": "qwen8b",
        "attempts": 2,
        "outcome": "200",
        "tokens_in": 1203,
        "tokens_out": 45,
        "tokens_cached": 900,
        "tokens_reasoning": 7,
        "queued_ms": 250,
        "first_token_ms": 310,
        "total_ms": 1200,
        "fallback": "failed",
        "adapted": ["max_tokens_clamped"],
        "left": ["gemma4: failed"],
    }


def test_people_read_the_same_in_one_line() -> None:
    text = as_pretty(SERVED).decode()
    assert text[23:] == (
        " WARNING 200 hermes chat* writer -> qwen8b (fallback: failed; max_tokens_clamped; left gemma4: failed)"
        "  1203 (900 cached)+45 tokens, queued 0.25 s, first 0.31 s, 1.20 s  my-request\n"
    )
    assert as_pretty(REFUSED).decode()[23:] == " INFO    model_not_found hermes chat  1.20 s  my-request\n"


def test_what_is_not_known_is_left_out() -> None:
    said = json.loads(as_json(REFUSED))
    assert not {"first_token_ms", "fallback", "routed", "adapted", "left"} & said.keys()


@pytest.mark.parametrize(
    ("line", "level"),
    [
        (replace(SERVED, detour=None), "info"),
        (SERVED, "warning"),
        (replace(SERVED, detour=("routed", "too_long")), "warning"),
        (REFUSED, "info"),
        (replace(REFUSED, outcome="upstream_error"), "warning"),
        (replace(REFUSED, outcome="stream_interrupted"), "warning"),
        (replace(REFUSED, outcome="client_gone"), "info"),
        (replace(REFUSED, outcome="422"), "info"),
    ],
)
def test_a_warning_is_what_was_not_served_as_it_is_meant_to_be(line: RequestLine, level: str) -> None:
    assert json.loads(as_json(line))["level"] == level


def test_colours_are_for_terminals() -> None:
    assert b"\x1b" not in as_pretty(SERVED)
    assert b"\x1b[33mWARNING\x1b[0m" in as_pretty(SERVED, colours=True)


@given(st.text(st.characters(exclude_categories=())), st.floats(min_value=0, max_value=4e9))
@example("half of a pair: \ud800", 0.0)
def test_any_text_is_one_line_of_json(text: str, at: float) -> None:
    data = as_json(EventLine(at, logging.INFO, "gateway", text))
    assert data.count(b"\n") == 1
    said = json.loads(data)
    assert said["message"] == text.encode(errors="replace").decode()
    assert as_pretty(EventLine(at, logging.INFO, "gateway", text)).endswith(b"\n")


# -- the thread -------------------------------------------------------------------------------------------------------


class Target:
    """Takes what is written, some bytes at a time; `closed` = nobody reads."""

    def __init__(self) -> None:
        self.data = b""
        self.asked, self.took = threading.Event(), threading.Event()
        self.open = threading.Event()
        self.open.set()
        self.broken = False

    def write(self, data: bytes) -> int:
        self.open.wait(PATIENCE)
        self.asked.set()
        if self.broken:
            raise BrokenPipeError
        self.data += data[:7]
        self.took.set()
        return len(data[:7])


def event(text: str) -> EventLine:
    return EventLine(0.0, logging.INFO, "gateway", text)


def form(line: RequestLine | EventLine) -> bytes:
    assert isinstance(line, EventLine)
    return f"{line.text}\n".encode()


def test_lines_are_written_in_their_order_and_all_of_them_at_the_end() -> None:
    target = Target()
    writer = LogWriter(form, target.write)
    for i in range(1000):
        writer.put(event(f"line {i}"))
    writer.close()
    assert target.data.decode().splitlines() == [f"line {i}" for i in range(1000)]


def test_a_line_is_written_without_waiting_for_more() -> None:
    target = Target()
    writer = LogWriter(form, target.write)
    writer.put(event("one"))
    assert target.took.wait(PATIENCE)
    writer.close()


def test_while_nobody_reads_the_newest_lines_are_kept_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 100)
    target = Target()
    target.open.clear()
    writer = LogWriter(form, target.write)
    for i in range(1000):
        writer.put(event(f"line {i}"))  # would hang here, were it not for the thread
    assert writer.lost >= 1000 - module.KEPT - module.PIECE
    target.open.set()
    writer.close()
    lines = target.data.decode().splitlines()
    assert lines[-1] == "line 999"
    assert len(lines) + writer.lost == 1000


def test_lines_that_cannot_be_written_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.01)
    target = Target()
    target.broken = True
    writer = LogWriter(form, target.write)
    writer.put(event("one"))
    assert target.asked.wait(PATIENCE)
    target.broken = False
    assert target.took.wait(PATIENCE)
    writer.close()
    assert (target.data, writer.lost) == (b"one\n", 0)


def test_lines_that_could_not_be_written_up_to_the_end_are_lost() -> None:
    target = Target()
    target.broken = True
    writer = LogWriter(form, target.write)
    writer.put(event("one"))
    assert target.asked.wait(PATIENCE)
    writer.close()
    assert writer.lost == 1


def test_a_line_that_has_no_form_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 1)
    target = Target()
    writer = LogWriter(form, target.write)
    writer.put(SERVED)  # this form is for events
    writer.put(event("one"))
    writer.close()
    assert (target.data, writer.lost) == (b"one\n", 1)


def test_an_end_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAST", 0.1)
    target = Target()
    target.open.clear()
    writer = LogWriter(form, target.write)
    writer.put(event("one"))
    writer.close()
    assert target.data == b"", "it is still stuck"
    target.open.set()


def test_a_traceback_stands_in_the_message_and_wrong_arguments_harm_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    target = Target()
    writer = LogWriter(as_json, target.write)
    handler = QueueHandler(writer)
    logger = logging.Logger("gateway.test")
    logger.addHandler(handler)
    try:
        raise KeyError("gone")
    except KeyError:
        logger.exception("request %s failed", "17")
    logger.info("%d", "not a number")
    writer.close()
    (line,) = target.data.splitlines()
    said = json.loads(line)
    assert (said["level"], said["logger"]) == ("error", "gateway.test")
    assert said["message"].startswith("request 17 failed\nTraceback")
    assert "KeyError: 'gone'" in said["message"]
    assert "not a number" in capsys.readouterr().err, "told where all else fails"


def test_a_full_pipe_that_does_not_block_is_waited_for() -> None:
    reader, writing = os.pipe()
    os.set_blocking(writing, False)
    writer = LogWriter(form, lambda data: os.write(writing, data))
    for i in range(3000):
        writer.put(event(f"line {i:060}"))
    with os.fdopen(reader, "rb") as lines:
        for i in range(3000):
            assert lines.readline() == f"line {i:060}\n".encode()
        writer.close()
    os.close(writing)
    assert writer.lost == 0
