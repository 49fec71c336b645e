"""docs/connect.md says what works: its snippets run, and its configs name what the gateway has."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.config.load import load_text
from tests.config.test_schema_docs import ENVIRON, data_of
from tests.demo_process import PATIENCE, ROOT, Demo, needs_curl, running_demo
from tests.program.test_docs import run
from tests.quickstarts import PARTS

HERMES_WINDOW = 64_000  # tokens; with less, Hermes refuses to start
SHIPPED = (ROOT / "routes.yaml").read_text()
BASE_URL = "http://127.0.0.1:4000/v1"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with running_demo(tmp_path_factory.mktemp("demo")) as running:
        yield running


@pytest.fixture(scope="module")
def cards(demo: Demo) -> dict[str, Any]:
    """What clients learn of each alias from /v1/models."""
    reply = httpx.get(f"{demo.url}/v1/models", timeout=PATIENCE, trust_env=False)
    return {card["id"]: card for card in reply.json()["data"]}


def blocks(part: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PARTS[part], re.M | re.S)


@pytest.mark.parametrize(
    ("snippet", "said"),
    [
        *zip(
            blocks("curl-and-the-sdks", "python"),
            [
                r"^qwen36 says\s+12\*17 is 204\.$",
                r"^calls get_weather \{.*Oslo.*\}\s.*rain",
                r"12\*17 is 204\.\s+\d+ tokens$",
            ],
            strict=True,
        )
    ],
    ids=["chat", "tool", "stream"],
)
def test_the_snippets_of_the_sdk_run(demo: Demo, tmp_path: Any, snippet: str, said: str) -> None:
    assert re.search(said, run(demo, [sys.executable, "-c", snippet], tmp_path).strip(), re.S)


@needs_curl
def test_the_curls_run(demo: Demo, tmp_path: Any) -> None:
    (snippet,) = blocks("curl-and-the-sdks", "bash")
    said = run(demo, ["bash", "-euo", "pipefail", "-c", snippet], tmp_path)
    assert '"id":"spark-qwen36"' in said
    assert "x-gateway-backend: qwen36" in said
    assert "204" in said


def test_hermes_is_given_an_alias_that_it_starts_with(cards: dict[str, Any]) -> None:
    config = data_of(blocks("hermes", "yaml")[0])
    (provider,) = config["custom_providers"]
    assert config["model"]["provider"] == f"custom:{provider['name']}"
    assert provider["base_url"] == BASE_URL
    for alias in (config["model"]["default"], provider["default_model"]):
        assert cards[alias]["max_model_len"] >= HERMES_WINDOW


def test_openclaw_is_given_an_alias_with_its_window(cards: dict[str, Any]) -> None:
    (text,) = blocks("openclaw", "json")
    config = json.loads(text)
    ((name, provider),) = config["models"]["providers"].items()
    (model,) = provider["models"]
    assert provider["baseUrl"] == BASE_URL
    assert config["agents"]["defaults"]["model"]["primary"] == f"{name}/{model['id']}"
    assert model["contextWindow"] == cards[model["id"]]["max_model_len"]


def test_open_webui_is_given_the_base_url() -> None:
    assert f"export OPENAI_API_BASE_URL={BASE_URL}\n" in PARTS["open-webui"]


@pytest.mark.parametrize("name", ["what-holds-for-all", "open-webui"])
def test_what_is_to_be_added_to_routes_yaml_is_valid(name: str) -> None:
    (part,) = (block for block in blocks(name, "yaml") if block.startswith("# part\n"))
    keys = {key: f"a-key-of-{key}" for key in re.findall(r"\$\{(\w+)\}", part)}
    assert load_text(SHIPPED + part, "routes.yaml", {**ENVIRON, **keys}).snapshot.clients


def test_claude_code_is_given_an_alias_with_its_window(cards: dict[str, Any]) -> None:
    (text,) = (block for block in blocks("claude-code", "bash") if block.startswith("# part\n"))
    given = dict(re.findall(r"^export (\w+)=(\S+)", text, re.M))
    assert given["ANTHROPIC_BASE_URL"] + "/v1" == BASE_URL
    for name in ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"):
        assert cards[given[name]]["max_model_len"] == int(given["CLAUDE_CODE_MAX_CONTEXT_TOKENS"])


def test_claude_code_is_answered_where_it_asks(demo: Demo) -> None:
    body = {"model": "spark-qwen36", "max_tokens": 100, "messages": [{"role": "user", "content": "What is 12*17?"}]}
    reply = httpx.post(f"{demo.url}/v1/messages?beta=true", json=body, timeout=PATIENCE, trust_env=False)
    assert "12*17 is 204." in reply.json()["content"][-1]["text"]
