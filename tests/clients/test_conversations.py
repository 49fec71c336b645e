"""Agents keep a conversation going when its backend is killed: between a call and its result, by the call itself. A
second process continues what the first began."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.agents import PATIENCE, ClaudeCode, Hermes, OpenClaw
from tests.clients.stage import KEY, Answer, answers, killable_demo, kills
from tests.demo_process import Demo

pytestmark = pytest.mark.timeout(3 * PATIENCE)

SUM = "12*17 is 204."


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    with killable_demo(tmp_path) as running:
        yield running


def went_on(demo: Demo, endpoint: str, turns: int) -> None:
    """The call came from the first backend, everything after it from the second."""
    told = [one for one in answers(demo) if one.stream]  # titles and other side calls are not streamed
    assert {one.outcome for one in told} == {"200"}
    assert {one.endpoint for one in told} == {endpoint}
    assert [one.backend for one in told] == ["qwen36"] + ["gemma4"] * turns, told


@pytest.mark.parametrize(
    ("mode", "endpoint"),
    [("openai", "chat"), ("codex_responses", "responses"), ("anthropic_messages", "messages")],
)
def test_hermes_goes_on(demo: Demo, tmp_path: Path, mode: str, endpoint: str) -> None:
    hermes = Hermes(tmp_path, demo.url, mode)
    assert '"output": "42000"' in hermes.ask(f"Call the tool terminal with command=`{kills(demo)}`", KEY)
    said = hermes.ask("What is 12*17?", KEY, "--continue")
    assert SUM in said
    assert "Resumed session" in said
    went_on(demo, endpoint, 2)


@pytest.mark.parametrize(
    ("api", "endpoint"),
    [("anthropic-messages", "messages"), ("azure-openai-responses", "responses")],
)
def test_openclaw_goes_on(demo: Demo, tmp_path: Path, api: str, endpoint: str) -> None:
    openclaw = OpenClaw(tmp_path, demo.url, api)
    told = openclaw.ask(f"Call the tool exec with command=`{kills(demo)}`", KEY)
    assert told["final"] == "The tool answered: 42000"
    assert told["toolSummary"]["tools"] == ["exec"]
    went_on(demo, endpoint, 1)


@pytest.mark.parametrize(("api", "endpoint"), [("openai-completions", "chat"), ("openai-responses", "responses")])
def test_openclaw_goes_on_in_a_second_turn(demo: Demo, tmp_path: Path, api: str, endpoint: str) -> None:
    openclaw = OpenClaw(tmp_path, demo.url, api)
    assert "The tool answered: 42000" in openclaw.turn(f"Call the tool exec with command=`{kills(demo)}`", KEY)
    assert SUM in openclaw.turn("What is 12*17?", KEY)
    went_on(demo, endpoint, 2)


def test_claude_code_goes_on(demo: Demo, tmp_path: Path) -> None:
    claude = ClaudeCode(tmp_path, demo.url)
    prompt = f"Call the tool Bash with command=`{kills(demo)}`"
    assert "The tool answered: 42000" in claude.ask(prompt, KEY, "--allowedTools", "Bash")
    assert SUM in claude.ask("What is 12*17?", KEY, "--continue")
    assert Answer("messages", "qwen36", True, "200") in answers(demo)
    assert answers(demo)[-1] == Answer("messages", "gemma4", True, "200")
