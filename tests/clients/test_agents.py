"""Hermes, OpenClaw and Claude Code work with the config of their quick starts: `make test-clients`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.clients.agents import PATIENCE, Agent, ClaudeCode, Hermes, OpenClaw
from tests.clients.stage import MORE
from tests.demo_process import ROOT, Demo, running_demo
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(3 * PATIENCE)

READY = 'gateway_backend_state{backend="qwen36",state="ready"} 1.0'


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    folder = tmp_path_factory.mktemp("demo")
    routes = folder / "routes.yaml"
    routes.write_text((ROOT / "routes.yaml").read_text() + MORE)
    with running_demo(folder, "--config", str(routes)) as running:
        yield running


@pytest.fixture
def hermes(demo: Demo, tmp_path: Path) -> Hermes:
    return Hermes(tmp_path, demo.url)


@pytest.fixture
def openclaw(demo: Demo, tmp_path: Path) -> OpenClaw:
    return OpenClaw(tmp_path, demo.url)


@pytest.fixture
def hermes_in_responses(demo: Demo, tmp_path: Path) -> Hermes:
    return Hermes(tmp_path, demo.url, "codex_responses")


@pytest.fixture
def openclaw_in_responses(demo: Demo, tmp_path: Path) -> OpenClaw:
    return OpenClaw(tmp_path, demo.url, "openai-responses")


@pytest.fixture
def claude(demo: Demo, tmp_path: Path) -> ClaudeCode:
    return ClaudeCode(tmp_path, demo.url)


@contextmanager
def dies_in_the_middle(demo: Demo) -> Iterator[None]:
    """The next stream of the alias' first backend breaks after its first tokens of content or of a call."""
    wait_until(lambda: READY in metrics(demo), PATIENCE, lambda: metrics(demo))  # a test before may have killed it
    simulated = f"{demo.control}/_sim/qwen36"
    fault = {"kind": "die_mid", "after": 15, "count": 1}
    httpx.post(f"{simulated}/fault", json=fault, timeout=PATIENCE, trust_env=False).raise_for_status()
    yield
    assert httpx.get(simulated, timeout=PATIENCE, trust_env=False).json()["faults"] == [], "it did not die"


def metrics(demo: Demo) -> str:
    key = {"authorization": "Bearer operator-key"}  # with `clients`, /metrics is an admin's
    return httpx.get(f"{demo.url}/metrics", headers=key, timeout=PATIENCE, trust_env=False).text


def served(demo: Demo, agent: Agent, endpoint: str = "chat") -> None:
    """The whole turn was answered by the gateway, and nothing is left under way."""
    told = metrics(demo)
    assert f'endpoint="{endpoint}"' in told
    assert 'gateway_inflight{backend="qwen36"} 0.0' in told


def test_hermes_chats(demo: Demo, hermes: Hermes) -> None:
    assert "12*17 is 204." in hermes.ask("What is 12*17?", "right-key")
    served(demo, hermes)


def test_hermes_calls_a_tool_and_reads_its_result(hermes: Hermes) -> None:
    assert "The tool answered:" in hermes.ask("Use search_files to find note.txt", "right-key")


def test_hermes_survives_a_backend_that_dies_in_a_tool_call(demo: Demo, hermes: Hermes) -> None:
    with dies_in_the_middle(demo):
        assert "The tool answered:" in hermes.ask("Use search_files to find note.txt", "right-key")


def test_hermes_is_served_by_the_fallback(demo: Demo, hermes: Hermes) -> None:
    demo.steer("qwen36", "kill")
    try:
        assert "12*17 is 204." in hermes.ask("What is 12*17?", "right-key")
    finally:
        demo.steer("qwen36", "revive")


def test_hermes_goes_on_after_a_key_or_an_alias_was_refused(hermes: Hermes) -> None:
    assert "HTTP 401" in hermes.ask("What is 12*17?", "wrong-key")
    assert "12*17 is 204." in hermes.ask("What is 12*17?", "right-key")
    assert "HTTP 403" in hermes.ask("What is 12*17?", "right-key", "-m", "writer")
    assert "12*17 is 204." in hermes.ask("What is 12*17?", "right-key")


def test_hermes_chats_in_responses(demo: Demo, hermes_in_responses: Hermes) -> None:
    assert "12*17 is 204." in hermes_in_responses.ask("What is 12*17?", "right-key")
    served(demo, hermes_in_responses, "responses")


def test_hermes_survives_a_backend_that_dies_in_a_tool_call_in_responses(
    demo: Demo, hermes_in_responses: Hermes
) -> None:
    with dies_in_the_middle(demo):
        assert "The tool answered:" in hermes_in_responses.ask("Use search_files to find note.txt", "right-key")


def test_hermes_survives_a_backend_that_dies_in_a_tool_call_in_messages(demo: Demo, tmp_path: Path) -> None:
    hermes = Hermes(tmp_path, demo.url, "anthropic_messages")
    with dies_in_the_middle(demo):
        assert "The tool answered:" in hermes.ask("Use search_files to find note.txt", "right-key")


def test_openclaw_chats(demo: Demo, openclaw: OpenClaw) -> None:
    assert openclaw.ask("What is 12*17?", "right-key")["final"] == "12*17 is 204."
    served(demo, openclaw)


def test_openclaw_calls_a_tool_and_reads_its_result(openclaw: OpenClaw) -> None:
    told = openclaw.ask("Use apply_patch on note.txt", "right-key")
    assert told["toolSummary"]["tools"] == ["apply_patch"]
    assert told["final"].startswith("The tool answered:")


def test_openclaw_survives_a_backend_that_dies_in_a_tool_call(demo: Demo, openclaw: OpenClaw) -> None:
    with dies_in_the_middle(demo):
        told = openclaw.ask("Use apply_patch on note.txt", "right-key")
    assert told["final"].startswith("The tool answered:")


def test_openclaw_chats_in_responses(demo: Demo, openclaw_in_responses: OpenClaw) -> None:
    assert openclaw_in_responses.ask("What is 12*17?", "right-key")["final"] == "12*17 is 204."
    served(demo, openclaw_in_responses, "responses")


def test_openclaw_survives_a_backend_that_dies_in_a_tool_call_in_responses(
    demo: Demo, openclaw_in_responses: OpenClaw
) -> None:
    with dies_in_the_middle(demo):
        told = openclaw_in_responses.ask("Use apply_patch on note.txt", "right-key")
    assert told["toolSummary"]["tools"] == ["apply_patch"]
    assert told["final"].startswith("The tool answered:")


def test_openclaw_says_that_its_key_is_wrong(openclaw: OpenClaw) -> None:
    told = openclaw.ask("What is 12*17?", "wrong-key")
    assert not told["ok"]
    assert "401" in told["error"]["message"]


def test_claude_code_chats(demo: Demo, claude: ClaudeCode) -> None:
    assert "12*17 is 204." in claude.ask("What is 12*17?", "right-key")
    served(demo, claude, "messages")


BASH = ("Call the tool Bash", "right-key", "--allowedTools", "Bash")


def test_claude_code_calls_a_tool_and_reads_its_result(claude: ClaudeCode) -> None:
    assert "The tool answered:" in claude.ask(*BASH)


def test_claude_code_goes_on_when_a_web_search_is_refused(claude: ClaudeCode) -> None:
    """The refusal of the request behind the call is the call's result."""
    options = ("--tools", "WebSearch", "--allowedTools", "WebSearch")
    said = claude.ask("Call the tool WebSearch", "right-key", *options, ENABLE_TOOL_SEARCH="false")
    assert "The tool answered:" in said
    assert "'web_search' of type 'web_search_2" in said
    assert "--disallowedTools WebSearch" in said


def test_claude_code_survives_a_backend_that_dies_in_a_tool_call(demo: Demo, claude: ClaudeCode) -> None:
    with dies_in_the_middle(demo):
        assert "The tool answered:" in claude.ask(*BASH)


def test_claude_code_is_served_by_the_fallback(demo: Demo, claude: ClaudeCode) -> None:
    demo.steer("qwen36", "kill")
    try:
        assert "12*17 is 204." in claude.ask("What is 12*17?", "right-key")
    finally:
        demo.steer("qwen36", "revive")


def test_claude_code_says_that_its_key_is_wrong_or_its_model_unknown(claude: ClaudeCode) -> None:
    assert "not one of the gateway's `clients`" in claude.ask("What is 12*17?", "wrong-key")
    assert "selected model (nobody)" in claude.ask("What is 12*17?", "right-key", ANTHROPIC_MODEL="nobody")


def test_claude_code_is_told_in_its_own_words_that_the_prompt_is_too_long(claude: ClaudeCode) -> None:
    assert "Prompt is too long" in claude.ask("How many?", "right-key", read="word " * 300_000)
