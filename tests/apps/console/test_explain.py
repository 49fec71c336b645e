"""`gateway explain`: from the file, from the running gateway, and what its exit code says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bench.ports import free_ports
from gateway.cli.main import cli
from tests.apps.control.machine import machine
from tests.apps.control.requested import CALLED, aged, called, on_node, until_known
from tests.scripted import scripted
from tests.support import running_gateway

FLEET = """\
backends:
  think: {url: "http://192.168.1.12:8002", model: Qwen3-Next-80B-A3B-Thinking, context: 65536}
  gemma4: {url: "http://192.168.1.12:8001", model: gemma-4-31B-it, context: 65536, tool_parser: none}
  qwen36: {url: "http://192.168.1.11:8001", model: Qwen3.6-35B-A3B, context: 131072, tool_parser: qwen3_xml}
  qwen8b: {engine: ollama, url: "http://192.168.1.11:11434", model: "qwen3:8b", context: 32768}
  cloud: {engine: openai, url: "https://api.example.com/v1", cloud: true, model: x, api_key: k}
aliases:
  all: [think, gemma4, qwen36, qwen8b, cloud]
  mended: {use: [gemma4], on_unsupported: mend}
  closed: [gemma4, cloud]
  open: {use: [gemma4, cloud], cloud_when: [down, incapable]}
clients:
  webui: {key: abc, on_unsupported: strip, local_only: true}
"""


def file(folder: Path, text: str = FLEET, port: int | None = None) -> str:
    path = folder / "routes.yaml"
    path.write_text(f"server: {{listen: '127.0.0.1:{port or free_ports(1)}'}}\n{text}")
    return str(path)


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(cli, ["explain", *arguments], env=environ)


def explained(*arguments: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    return told


def verdicts(told: dict[str, Any]) -> dict[str, str]:
    return {backend["backend"]: backend["verdict"] for step in told["steps"] for backend in step["backends"]}


def test_the_plan_is_printed_with_its_reasons(tmp_path: Path) -> None:
    done = run("all", "--tools", "--config", file(tmp_path))
    assert done.exit_code == 0
    for line in (
        "alone (no gateway runs at http://127.0.0.1:",
        "every backend is taken as ready",
        "request: chat, tools auto, room for 1,024 tokens of answer",
        "1. think  use, number 3  vllm, ready",
        "always thinks and was never seen to call a tool",
        "2. gemma4  skip",
        "cannot call tools: start vLLM with --enable-auto-tool-choice --tool-call-parser gemma4",
        "3. qwen36  use, number 1",
        "tools yes (declared)  on demand enforced (declared)",
        "thinking optional (family)  switch enable_thinking (family)",
        "5. cloud  skip  openai, ready  CLOUD",
        "entered when everything before it is out for: down (cloud_when)",
        "tried in this order: qwen36, qwen8b, think",
    ):
        assert line in done.output, line


def test_a_window_that_is_too_small_is_left(tmp_path: Path) -> None:
    told = explained("all", "--tokens", "100000", "--config", file(tmp_path))
    assert told["order"] == ["qwen36"]
    big = told["steps"][2]["backends"][0]
    assert (big["window"], big["left"], big["prompt"]) == (
        131072,
        31072,
        {"at_least": 100000, "probably": 100000, "at_most": 100000},
    )
    assert told["steps"][0]["backends"][0]["kind"] == "too_long"


def test_the_last_resort_is_part_of_it(tmp_path: Path) -> None:
    told = explained("mended", "--tools", "--config", file(tmp_path))
    assert (told["served"], told["resort"], verdicts(told)) == (True, "mend", {"gemma4": "adapt"})
    assert told["steps"][0]["backends"][0]["adapted"] == ["tools_as_text"]
    told = explained("mended", "--tools", "--client", "webui", "--config", file(tmp_path))
    assert told["resort"] == "strip"


def test_a_cloud_counts_only_where_it_may_be_entered(tmp_path: Path) -> None:
    config = file(tmp_path)
    done = run("closed", "--tools", "--config", config)
    assert done.exit_code == 1
    assert "tried in this order: none" in done.output
    assert "the client gets 400 tool_choice_unsupported: No backend of alias 'closed' can call tools" in done.output
    assert explained("open", "--tools", "--config", config)["order"] == ["cloud"]
    assert explained("open", "--tools", "--client", "webui", "--config", config)["order"] == ["gemma4"]
    assert explained("closed", "--config", config)["order"] == ["gemma4", "cloud"]


def test_a_request_is_taken_as_it_is(tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"model": "whatever", "messages": [{"role": "user", "content": "x"}], "think": True}))
    told = explained("all", "--request", str(body), "--config", file(tmp_path))
    assert (told["request"]["thinking"], told["request"]["thinking_is_a_wish"]) == ("on", False)
    assert "set by the backend's own switch: thinking on" in told["steps"][2]["backends"][0]["reasons"]
    body.write_text(json.dumps({"prompt": "x"}))
    assert explained("all", "--request", str(body), "--config", file(tmp_path))["request"]["endpoint"] == "completions"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope"], "The model 'nope' does not exist"),
        (["all", "--client", "nobody"], "There is no client 'nobody'"),
        (["all", "--request", "missing.json"], "cannot read 'missing.json'"),
        (["all", "--request", "x", "--tools"], "leave out --tools"),
        (["all", "--tokens", "-1"], "--tokens"),
        ([], "Missing argument"),
    ],
)
def test_wrong_usage_says_so(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = run(*arguments, "--config", file(tmp_path))
    assert done.exit_code == 2
    assert words in done.output


def test_a_file_that_does_not_load_is_a_problem(tmp_path: Path) -> None:
    assert run("all", "--config", file(tmp_path, "backends: {a: {}}\n")).exit_code == 1
    assert run("all", "--config", str(tmp_path / "none.yaml")).exit_code == 2


async def test_the_running_gateway_knows_better(tmp_path: Path) -> None:
    text = 'backends: {chat: {url: "http://127.0.0.1:9"}}\nclients: {ops: {key: secret-1, admin: true}}\n'
    async with running_gateway(text) as gateway:
        await gateway.until(lambda: gateway.state("chat") == "warming")
        config = file(tmp_path, text, int(gateway.url.rpartition(":")[2]))
        done = await asyncio.to_thread(run, "chat", "--config", config, GATEWAY_KEY="secret-1")
        assert done.exit_code == 1
        assert f"from the running gateway at {gateway.url}" in done.output
        assert "is starting or has just gone" in done.output
        assert "the client gets 429 backend_warming" in done.output
        by_key = await asyncio.to_thread(run, "chat", "--config", config, "--key", "secret-1", "--json")
        assert json.loads(by_key.stdout)["error"]["code"] == "backend_warming"
        refused = await asyncio.to_thread(run, "chat", "--config", config)
        assert refused.exit_code == 2
        assert "--key KEY" in refused.output


def test_the_file_is_explained_in_its_first_mode_or_in_another(tmp_path: Path) -> None:
    arguments = (
        "all",
        "--config",
        file(tmp_path, FLEET + "modes: {daily: [qwen36, qwen8b], large: [think, gemma4]}\n"),
    )
    daily, large = explained(*arguments), explained(*arguments, "--mode", "large")
    assert (daily["order"], large["order"]) == (["qwen36", "qwen8b", "cloud"], ["think", "gemma4", "cloud"])
    assert daily["source"].endswith("every backend in mode daily is taken as ready")
    assert large["source"].endswith("every backend in mode large is taken as ready")
    parked = large["steps"][2]["backends"][0]
    assert (parked["state"], parked["reasons"]) == ("parked", ["is parked (outside mode 'large')"])
    assert run(*arguments, "--mode", "larg").exit_code == 2


async def test_another_mode_is_explained_from_the_file_though_a_gateway_runs(tmp_path: Path) -> None:
    text = 'backends: {chat: {url: "http://127.0.0.1:9"}}\nmodes: {daily: [chat], none: []}\n'
    async with running_gateway(text) as gateway:
        config = file(tmp_path, text, int(gateway.url.rpartition(":")[2]))
        asked = await asyncio.to_thread(run, "chat", "--config", config)
        other = await asyncio.to_thread(run, "chat", "--config", config, "--mode", "none")
    assert f"from the running gateway at {gateway.url}" in asked.output
    assert "alone: every backend in mode none is taken as ready" in other.output
    assert "the client gets 503 no_backend_available" in other.output


async def test_what_is_no_gateway_is_not_asked(tmp_path: Path) -> None:
    async with scripted() as server:
        config = file(tmp_path, port=int(server.url.rpartition(":")[2]))
        done = await asyncio.to_thread(run, "all", "--config", config)
    assert done.exit_code == 0
    assert "alone" in done.output


@pytest.mark.parametrize(
    ("alias", "said"),
    [
        ("x", "starts b (stops a, idle for 12 min); goes to c meanwhile"),
        ("b", "starts b (stops a, idle for 12 min); waits"),
    ],
)
async def test_what_a_request_would_have_started_is_said(tmp_path: Path, alias: str, said: str) -> None:
    async with machine(tmp_path, "a", "c", away="b") as there:
        keys = {"a": CALLED + on_node(60), "b": CALLED + on_node(60)}
        async with called(there, "aliases: {x: [b, c]}\n", keys) as gateway:
            await until_known(gateway, "a")
            aged(gateway, "a", idle=730, ran=900)
            routes = file(tmp_path, "backends: {a: {url: 'http://127.0.0.1:1'}}\n", int(gateway.url.rpartition(":")[2]))
            done = await asyncio.to_thread(run, alias, "--config", routes)
            assert (done.exit_code, said in done.stdout.splitlines()) == (0, True), done.output
