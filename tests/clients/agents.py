"""The real agents as processes, with the config of their quick start and nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.demo_process import ROOT
from tests.quickstarts import PARTS

CLIENTS = Path(os.environ.get("CLIENTS", ROOT / ".venv-clients"))
PATIENCE = 240.0  # seconds for one turn of an agent; starting it takes most of that
PLACE = "http://127.0.0.1:4000/v1"


# What the config of the quick start needs for these kinds of API, as its page says.
PROVIDERS: dict[str, dict[str, Any]] = {"azure-openai-responses": {"authHeader": True}}


def needs(program: Path) -> None:
    """Skip the test where the client is not installed."""
    if not program.exists():
        pytest.skip(f"{program} is not installed; `make test-clients` does that")


def outside(**environ: str) -> dict[str, str]:
    """The environment of a client: nothing of its user's, and no proxy on the way to this machine."""
    kept = {name: value for name, value in os.environ.items() if name in ("LANG", "LC_ALL", "TMPDIR")}
    path = f"{CLIENTS / 'node_modules/.bin'}:{os.environ['PATH']}"
    return {**kept, "PATH": path, "NO_PROXY": "*", **environ}


def config_of(page: str, language: str, base_url: str, key: str) -> str:
    """The first config of this part of docs/connect.md, for this gateway and this key."""
    found = re.search(rf"^```{language}\n(.*?)^```$", PARTS[page], re.M | re.S)
    assert found is not None
    assert PLACE in found[1]
    return found[1].replace(PLACE, f"{base_url}/v1").replace('"none"', f'"{key}"').replace("none", key)


@dataclass
class Agent:
    """`home` is all that it finds of its user; `ask` is one turn, from a new process."""

    home: Path
    base_url: str

    def _run(self, *command: str, read: str = "", **environ: str) -> str:
        """`read`: what stands on its standard input."""
        program = shutil.which(command[0], path=outside()["PATH"])
        needs(Path(program or CLIENTS / "node_modules/.bin" / command[0]))
        environ = outside(HOME=str(self.home), **environ)
        done = subprocess.run(
            command, cwd=self.home, env=environ, input=read, capture_output=True, text=True, timeout=PATIENCE
        )
        return done.stdout + done.stderr


@dataclass
class Hermes(Agent):
    mode: str = "openai"

    def ask(self, prompt: str, key: str = "none", *options: str) -> str:
        """What it printed."""
        folder = self.home / ".hermes"
        folder.mkdir(exist_ok=True)
        config = config_of("hermes", "yaml", self.base_url, key)
        (folder / "config.yaml").write_text(config.replace("api_mode: openai", f"api_mode: {self.mode}"))
        return self._run(str(CLIENTS / "hermes/bin/hermes"), "chat", "-Q", "--yolo", *options, "-q", prompt)


class ClaudeCode(Agent):
    def ask(self, prompt: str, key: str = "none", *options: str, read: str = "", **environ: str) -> str:
        """What it printed. Nobody can be asked for leave: `options` name the tools that it may call."""
        return self._run("claude", "-p", prompt, *options, read=read, **self.variables(key, **environ))

    def variables(self, key: str = "none", **environ: str) -> dict[str, str]:
        """Those of the quick start, for this gateway and this key."""
        given = dict(re.findall(r"^export (\w+)=(\S+)", PARTS["claude-code"], re.M))
        assert given["ANTHROPIC_BASE_URL"] + "/v1" == PLACE
        return given | {"ANTHROPIC_BASE_URL": self.base_url, "ANTHROPIC_AUTH_TOKEN": key, **environ}


@dataclass
class OpenClaw(Agent):
    """Its kinds of API differ in what its config says of the gateway (`PROVIDERS`)."""

    api: str = "openai-completions"

    def _config(self, key: str) -> str:
        file = self.home / "openclaw.json"
        config = json.loads(config_of("openclaw", "json", self.base_url, key))
        config["models"]["providers"]["spark"] |= {"api": self.api, **PROVIDERS.get(self.api, {})}
        if self.api == "anthropic-messages":
            config["models"]["providers"]["spark"]["baseUrl"] = self.base_url
        file.write_text(json.dumps(config))
        return str(file)

    def ask(self, prompt: str, key: str = "none") -> dict[str, Any]:
        """Its envelope: `ok`, `final`, `toolSummary`, ..."""
        command = (
            "openclaw",
            "agent",
            "exec",
            "--config",
            self._config(key),
            "--cwd",
            str(self.home),
            "--json",
            prompt,
        )
        said = self._run(*command)
        found = re.search(r"^\{$.*?^\}$", said, re.M | re.S)
        assert found is not None, said
        envelope: dict[str, Any] = json.loads(found[0])
        return envelope

    def turn(self, prompt: str, key: str = "none") -> str:
        """All that it printed for one turn of its conversation."""
        command = ("openclaw", "agent", "--local", "--session-id", "one", "--json", "--message", prompt)
        state = {"OPENCLAW_CONFIG_PATH": self._config(key), "OPENCLAW_STATE_DIR": str(self.home / "state")}
        return self._run(*command, **state)
