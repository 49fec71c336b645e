"""Claude Code as people use it: in a terminal, with its dialogs, while two of its three backends are killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.agents import CLIENTS, PATIENCE, ClaudeCode, needs, outside
from tests.clients.stage import KEY, Answer, answers, at_work, killable_demo, kills
from tests.clients.terminal import Terminal, in_terminal
from tests.demo_process import Demo
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.timeout(2 * PATIENCE),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux here"),
]


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    with killable_demo(tmp_path, "--speedup", "2") as running:
        yield running


@pytest.fixture
def claude(demo: Demo, tmp_path: Path) -> Iterator[Terminal]:
    needs(CLIENTS / "node_modules/.bin/claude")
    home = tmp_path / "home"
    home.mkdir()
    known = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
    (home / ".claude.json").write_text(json.dumps({"hasCompletedOnboarding": True, "projects": {str(home): known}}))
    environ = outside(HOME=str(home), **ClaudeCode(home, demo.url).variables(KEY))
    with in_terminal("claude --permission-mode default", home, environ, PATIENCE / 2) as terminal:
        terminal.shows("❯")
        yield terminal


def test_a_conversation_goes_on_when_its_backends_are_killed(demo: Demo, claude: Terminal) -> None:
    claude.types(f"Call the tool Bash with command=`{kills(demo)}`")
    claude.shows("Do you want to proceed?")
    claude.press("Enter")
    claude.shows("The tool answered: 42000")
    claude.types("Say it in 300 words.")
    wait_until(lambda: at_work(demo, "gemma4"), PATIENCE / 2, claude.screen)
    demo.steer("gemma4", "kill")
    wait_until(lambda: answers(demo)[-1].backend == "qwen8b", PATIENCE / 2, claude.screen)
    claude.types("What is 12*17?")
    claude.shows("12*17 is 204.")
    # The gateway writes its log a moment after the answer.
    wait_until(lambda: answers(demo)[-1] == Answer("messages", "qwen8b", True, "200"), PATIENCE / 2, claude.screen)
    told = answers(demo)
    assert told[0] == Answer("messages", "qwen36", True, "200")
    assert Answer("messages", "gemma4", True, "200") in told


def test_a_turn_that_is_interrupted_leaves_nothing_behind(demo: Demo, claude: Terminal) -> None:
    claude.types("Say it in 3000 words.")
    claude.shows("the light on the spark")
    claude.press("Escape")
    claude.shows("Interrupted")
    wait_until(lambda: not at_work(demo, "qwen36"), PATIENCE / 2, claude.screen)
    claude.types("What is 12*17?")
    claude.shows("12*17 is 204.")
