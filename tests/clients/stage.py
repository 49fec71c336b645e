"""The demo that clients talk to: an alias with three backends that may be killed, keys, and who answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.demo_process import PATIENCE, ROOT, Demo, running_demo

KEY = "right-key"
CHAIN = ("qwen36", "gemma4", "qwen8b")  # a vLLM with its own parser, one with a wrong parser, an Ollama
MORE = """
clients:
  agent: {key: right-key, aliases: ["spark-*"]}
  operator: {key: operator-key, admin: true}
"""


@dataclass(frozen=True)
class Answer:
    """One request as the gateway's log tells it: `endpoint` is chat, responses or messages."""

    endpoint: str
    backend: str
    stream: bool
    outcome: str


@contextmanager
def killable_demo(folder: Path, *options: str) -> Iterator[Demo]:
    """The shipped fleet with a longer chain under `spark-qwen36`, for one conversation: what it kills stays away."""
    text = (ROOT / "routes.yaml").read_text()
    chain = f"spark-qwen36: [{', '.join(CHAIN)}]"
    assert "spark-qwen36: [qwen36, qwen8b]" in text
    routes = folder / "routes.yaml"
    routes.write_text(text.replace("spark-qwen36: [qwen36, qwen8b]", chain) + MORE)
    with running_demo(folder, "--config", str(routes), *options, cwd=folder) as running:
        yield running


def kills(demo: Demo, backend: str = CHAIN[0]) -> str:
    """A shell command that kills a backend and says 42000, which is not in its own text."""
    return f"curl -s -X POST {demo.control}/_sim/{backend}/kill > killed.json; echo $((6*7000))"


def at_work(demo: Demo, backend: str) -> bool:
    """Does this backend have a request under way?"""
    state = httpx.get(f"{demo.control}/_sim/{backend}", timeout=PATIENCE, trust_env=False).json()
    return bool(state["inflight"])


def answers(demo: Demo) -> list[Answer]:
    """What clients asked for so far, in order."""
    lines = [json.loads(line) for line in demo.log.read_text().splitlines() if line.startswith("{")]
    told = [line for line in lines if line.get("event") == "request" and line.get("alias")]
    return [Answer(line["endpoint"], line["backend"], line["stream"], line["outcome"]) for line in told]
