"""The openai, anthropic and litellm SDKs, each in an environment of its own, keep a conversation going while two of its
three backends are killed: `make test-clients`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.agents import CLIENTS, PATIENCE, needs, outside
from tests.clients.stage import KEY, Answer, answers, killable_demo
from tests.demo_process import ROOT, Demo
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(PATIENCE)

ANSWERS = 4  # turns of the conversation
BROKEN = "upstream connect error: backend reset"
WHOLE = [  # environment, program, kind, endpoint
    ("sdks", "openai", "chat", "chat"),
    ("sdks", "openai", "responses", "responses"),
    ("sdks", "anthropic", "messages", "messages"),
    ("litellm", "openai", "chat", "chat"),
    ("litellm", "litellm", "hosted_vllm", "chat"),
    ("litellm", "litellm", "anthropic", "messages"),
    ("litellm", "litellm", "responses", "responses"),
]
STREAMED = [  # and the exception of a broken stream
    ("sdks", "openai", "chat-stream", "chat", "APIError"),
    ("sdks", "openai", "responses-stream", "responses", "APIError"),
    ("sdks", "anthropic", "messages-stream", "messages", "APIStatusError"),
    ("litellm", "openai", "responses-stream", "responses", "APIError"),
    ("litellm", "litellm", "openai-stream", "chat", "MidStreamFallbackError"),
    ("litellm", "litellm", "anthropic-stream", "messages", "MidStreamFallbackError"),
    ("litellm", "litellm", "responses-stream", "responses", "MidStreamFallbackError"),
]


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    with killable_demo(tmp_path, "--speedup", "4") as running:
        yield running


def converse(demo: Demo, environment: str, program: str, kind: str) -> dict[str, Any]:
    """What the program of this SDK tells of its conversation (sdks/conversation.py)."""
    python = CLIENTS / environment / "bin/python"
    needs(python)
    command = [str(python), "-m", f"tests.clients.sdks.with_{program}", demo.url, KEY, demo.control, kind]
    environ = outside(HOME=str(demo.log.parent), LITELLM_LOCAL_MODEL_COST_MAP="True", PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])  # litellm prints things of its own before it
    wait_until(lambda: len(answers(demo)) >= ANSWERS)  # the log is written behind the answers
    return told


def goes_on(told: dict[str, Any]) -> None:
    """The call was executed and its result read by another backend, and the conversation came to its end."""
    name, arguments = told["called"]
    assert (name, json.loads(arguments)) == ("get_weather", {"city": "Oslo"})
    assert told["told"].strip() == "The tool answered: 4 degrees in Oslo"
    assert told["last"].strip() == "12*17 is 204."


@pytest.mark.parametrize(("environment", "program", "kind", "endpoint"), WHOLE)
def test_whole_answers_hide_the_backends_that_are_killed(
    demo: Demo, environment: str, program: str, kind: str, endpoint: str
) -> None:
    told = converse(demo, environment, program, kind)
    goes_on(told)
    assert "broke" not in told, told
    assert told["words"] == 300
    backends = ("qwen36", "gemma4", "qwen8b", "qwen8b")
    assert answers(demo) == [Answer(endpoint, backend, False, "200") for backend in backends]


@pytest.mark.parametrize(("environment", "program", "kind", "endpoint", "error"), STREAMED)
def test_a_stream_whose_backend_is_killed_raises_and_the_next_turn_goes_on_elsewhere(
    demo: Demo, environment: str, program: str, kind: str, endpoint: str, error: str
) -> None:
    told = converse(demo, environment, program, kind)
    goes_on(told)
    assert "broke" in told, "the stream ended as if it were whole"
    assert told["broke"][0] == error
    assert BROKEN in told["broke"][1]
    served = [(one.backend, one.outcome) for one in answers(demo)]
    assert served == [("qwen36", "200"), ("gemma4", "200"), ("gemma4", "stream_interrupted"), ("qwen8b", "200")]
    assert {(one.endpoint, one.stream) for one in answers(demo)} == {(endpoint, True)}
