"""Coding agents and agent libraries, each one loop with a tool, as they are set up in their quick starts:
`make test-clients`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.agents import CLIENTS, PATIENCE, PLACE, Agent, config_of, needs, outside
from tests.clients.stage import answers
from tests.demo_process import ROOT, Demo, running_demo
from tests.quickstarts import PARTS

pytestmark = pytest.mark.timeout(2 * PATIENCE)

HERE = Path(__file__).parent
NOTE = "the note is 42000"  # what the tool of mcp_server.py answers
WEATHER = "sunny, 42000 lux"  # what the tool of the libraries answers
JS = ("responses", "chat", "compatible", "messages")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """The shipped fleet; it keeps responses, which the AI SDK's default model needs."""
    folder = tmp_path_factory.mktemp("demo")
    routes = folder / "routes.yaml"
    text = (ROOT / "routes.yaml").read_text().replace("\nserver:\n", "\nserver:\n  keep_responses: 1h\n", 1)
    assert "keep_responses: 1h" in text
    routes.write_text(text)
    with running_demo(folder, "--config", str(routes), "--speedup", "4") as running:
        yield running


class Codex(Agent):
    def ask(self, prompt: str, more: str = "", config: str | None = None) -> str:
        """What it printed. `more`: further lines of its config; `config`: another one than that of the quick start."""
        folder = self.home / ".codex"
        folder.mkdir(exist_ok=True)
        (folder / "config.toml").write_text((config or config_of("codex", "toml", self.base_url, "none")) + more)
        options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
        return self._run("codex", "exec", *options, prompt, OPENAI_API_KEY="none")


def test_codex_calls_a_tool_and_reads_its_result(demo: Demo, tmp_path: Path) -> None:
    assert "The tool answered:" in Codex(tmp_path, demo.url).ask("Use exec_command to run echo hello")
    assert {one.endpoint for one in answers(demo)} == {"responses"}


def test_codex_calls_the_tool_of_an_mcp_server(demo: Demo, tmp_path: Path) -> None:
    server = f'\n[mcp_servers.notes]\ncommand = "python3"\nargs = ["{HERE / "mcp_server.py"}"]\n'
    assert NOTE in Codex(tmp_path, demo.url).ask("Use mcp__notes__read_note to read it", server)


def test_codex_with_nothing_but_another_base_url(demo: Demo, tmp_path: Path) -> None:
    config = f'model = "spark-qwen36"\nopenai_base_url = "{demo.url}/v1"\n'
    said = Codex(tmp_path, demo.url).ask("Use exec_command to run echo hello", config=config)
    assert "The tool answered:" in said
    assert "Reconnecting" not in said


class OpenCode(Agent):
    def ask(self, prompt: str) -> str:
        (self.home / "opencode.json").write_text(config_of("opencode-and-others", "json", self.base_url, "none"))
        return self._run("opencode", "run", "-m", "spark/spark-qwen36", prompt)


def test_opencode_calls_a_tool_and_reads_its_result(demo: Demo, tmp_path: Path) -> None:
    assert "The tool answered:" in OpenCode(tmp_path, demo.url).ask("Call the tool read")


class QwenCode(Agent):
    def ask(self, prompt: str) -> str:
        given = {"OPENAI_BASE_URL": f"{self.base_url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "spark-qwen36"}
        line = f"OPENAI_BASE_URL={PLACE} OPENAI_API_KEY=none OPENAI_MODEL=spark-qwen36 qwen --auth-type openai"
        assert line in PARTS["opencode-and-others"]
        return self._run("qwen", "--auth-type", "openai", "-y", "-p", prompt, **given)


def test_qwen_code_calls_a_tool_and_reads_its_result(demo: Demo, tmp_path: Path) -> None:
    assert "The tool answered:" in QwenCode(tmp_path, demo.url).ask("Use list_directory to find note.txt")


class Pi(Agent):
    def ask(self, prompt: str, api: str) -> str:
        model = {"id": "spark-qwen36", "name": "Qwen3.6", "reasoning": True, "input": ["text"], "maxTokens": 8192}
        model |= {"contextWindow": 131072, "cost": dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0)}
        base = self.base_url if api == "anthropic-messages" else f"{self.base_url}/v1"
        spark = {"baseUrl": base, "api": api, "apiKey": "none", "models": [model]}
        folder = self.home / ".pi/agent"
        folder.mkdir(parents=True)
        (folder / "models.json").write_text(json.dumps({"providers": {"spark": spark}}))
        return self._run("pi", "-p", "--provider", "spark", "--model", "spark-qwen36", prompt)


@pytest.mark.parametrize("api", ["openai-completions", "openai-responses", "anthropic-messages"])
def test_pi_calls_a_tool_and_reads_its_result(demo: Demo, tmp_path: Path, api: str) -> None:
    assert "The tool answered:" in Pi(tmp_path, demo.url).ask("Call the tool bash to find note.txt", api)


# -- libraries --------------------------------------------------------------------------------------------------------


def told(demo: Demo, program: Path, script: Path, kind: str) -> dict[str, Any]:
    """What a script of tests/clients/sdks tells of its loop."""
    needs(program)
    command = [str(program), str(script), f"{demo.url}/v1", "none", kind]
    environ = outside(HOME=str(demo.log.parent), AI_SDK_LOG_WARNINGS="false", PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def node(demo: Demo, name: str, kind: str) -> dict[str, Any]:
    """The same of a script for Node, beside the packages that it imports."""
    needs(CLIENTS / "node_modules/ai")
    script = CLIENTS / name
    script.write_text((HERE / "sdks" / name).read_text())
    return told(demo, Path(shutil.which("node", path=outside()["PATH"]) or "node"), script, kind)


@pytest.mark.parametrize("kind", [*JS, *(f"{kind}-stream" for kind in JS)])
def test_the_ai_sdk_calls_a_tool_and_reads_its_result(demo: Demo, kind: str) -> None:
    found = node(demo, "with_ai_sdk.mjs", kind)
    assert (found["steps"], found["calls"], WEATHER in found["text"]) == (2, [{"city": "Oslo"}], True)


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_openai_for_node_calls_a_tool_and_reads_its_result(demo: Demo, kind: str) -> None:
    found = node(demo, "with_node_openai.mjs", kind)
    assert (len(found["calls"]), WEATHER in found["text"]) == (1, True)


LIBRARIES = "pydantic-ai:chat pydantic-ai:responses pydantic-ai:messages openai-agents:chat openai-agents:responses"


@pytest.mark.parametrize("kind", LIBRARIES.split())
def test_a_library_calls_a_tool_and_reads_its_result(demo: Demo, kind: str) -> None:
    found = told(demo, CLIENTS / "agents/bin/python", HERE / "sdks/with_agents.py", kind)
    assert (found["calls"], WEATHER in found["text"]) == (["Oslo"], True)
