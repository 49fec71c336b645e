"""`gateway demo` as a user meets it: a real process, asked through the openai SDK, its backends killed one by one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from bench.ports import free_ports
from gateway.apps.demo.demo import command, shipped_routes, simulated
from gateway.config.load import load, load_text
from gateway.config.modes import in_mode
from gateway.config.snapshot import Alias
from tests.demo_process import GATEWAY, PATIENCE, ROOT, Demo, needs_curl, running_demo
from tests.waiting import wait_until

SNAPSHOT = in_mode(load(ROOT / "routes.yaml", {}).snapshot, None)
CHAT = [
    alias
    for alias in SNAPSHOT.aliases.values()
    if all(SNAPSHOT.backends[name].engine != "http" for step in alias.steps for name in step)
]
CHAIN = ("qwen36", "gemma4", "qwen8b")
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """The shipped fleet, with one longer chain and quicker health checks, so that nobody waits for them."""
    folder = tmp_path_factory.mktemp("demo")
    text = (ROOT / "routes.yaml").read_text()
    assert text.count("#defaults:\n") == text.count("\naliases:\n") == 1
    text = text.replace("#defaults:\n", "defaults:\n  health: {every: 250ms}\n")
    text = text.replace("\naliases:\n", f"\naliases:\n  chain: [{', '.join(CHAIN)}]\n")
    routes = folder / "routes.yaml"
    routes.write_text(text)
    with running_demo(folder, "--config", str(routes), "--speedup", "5") as running:
        yield running


# -- every alias ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alias", CHAT, ids=lambda alias: alias.name)
async def test_every_alias_answers_streaming_or_not_with_tools_or_not(demo: Demo, alias: Alias) -> None:
    if not _runs(demo, alias):
        _refused_as_parked(demo, alias.name)
        return
    http = DefaultAsyncHttpxClient(trust_env=False)
    async with AsyncOpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0, http_client=http) as client:
        plain, streamed, called, called_in_stream = await asyncio.gather(
            _plain(client, alias.name),
            _streamed(client, alias.name),
            _call(client, alias.name),
            _calls(client, alias.name),
        )
    assert "204" in plain
    assert "204" in streamed
    assert called == called_in_stream == ("get_weather", {"city": "Oslo"})


def _runs(demo: Demo, alias: Alias) -> bool:
    """Does the simulation run any backend of it that is in the mode in force? Those with `run: on_demand` wait to be
    started."""
    listening = {name for name, sim in _get(f"{demo.control}/_sim").items() if sim["listening"]}
    there = {name for name in listening if SNAPSHOT.backends[name].parked is None}
    return any(name in there for step in alias.steps for name in step)


def _refused_as_parked(demo: Demo, alias: str) -> None:
    reply = httpx.post(f"{demo.url}/v1/chat/completions", json=_body(alias), timeout=PATIENCE, trust_env=False)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_backend_available"), reply.text
    assert "parked" in reply.text


def _body(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "What is 12*17?"}]}


async def _plain(client: AsyncOpenAI, model: str) -> str:
    reply = await client.chat.completions.create(**_body(model))
    assert reply.model == model
    assert reply.choices[0].finish_reason == "stop"
    return reply.choices[0].message.content or ""


async def _streamed(client: AsyncOpenAI, model: str) -> str:
    said, ends = "", []
    async for chunk in await client.chat.completions.create(**_body(model), stream=True):
        assert chunk.model == model
        for choice in chunk.choices:
            said += choice.delta.content or ""
            ends += [choice.finish_reason] if choice.finish_reason else []
    assert ends == ["stop"]
    return said


async def _call(client: AsyncOpenAI, model: str) -> tuple[str, Any]:
    question: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
    reply = await client.chat.completions.create(model=model, messages=question, tools=[WEATHER])
    assert reply.choices[0].finish_reason == "tool_calls"
    (call,) = reply.choices[0].message.tool_calls or []
    assert call.type == "function"
    return call.function.name, json.loads(call.function.arguments)


async def _calls(client: AsyncOpenAI, model: str) -> tuple[str, Any]:
    question: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
    name = arguments = ""
    ends = []
    async for chunk in await client.chat.completions.create(
        model=model, messages=question, tools=[WEATHER], stream=True
    ):
        for choice in chunk.choices:
            ends += [choice.finish_reason] if choice.finish_reason else []
            for call in choice.delta.tool_calls or []:
                assert call.index == 0
                assert call.function is not None
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert ends == ["tool_calls"]
    return name, json.loads(arguments)


def test_the_list_of_models_has_every_alias_with_its_window(demo: Demo) -> None:
    listed = {model["id"]: model for model in _get(f"{demo.url}/v1/models")["data"]}
    assert set(listed) == {alias.name for alias in CHAT} | {"chain"}
    assert listed["spark-qwen36"]["max_model_len"] == 131072
    assert listed["chain"]["max_model_len"] == 131072


# -- a chain that breaks ----------------------------------------------------------------------------------------------


def test_a_killed_backend_is_left_for_the_next_loudly_and_taken_back_when_it_returns(demo: Demo) -> None:
    for backend, after in pairwise(CHAIN):
        _until_served_by(demo, backend)
        demo.steer(backend, "kill")
        reply = _ask(demo)
        assert reply.status_code == 200, reply.text
        assert reply.headers["x-gateway-backend"] == after
        assert reply.headers["x-gateway-fallback"]
    demo.steer(CHAIN[-1], "kill")
    error = _ask(demo)
    assert error.status_code in (429, 502), error.text
    assert error.json()["error"]["code"] in ("backend_warming", "upstream_error")
    assert "'chain'" in error.text
    assert all(backend in error.text for backend in CHAIN)
    for backend in reversed(CHAIN):
        demo.steer(backend, "revive")
        _until_served_by(demo, backend)
    assert "x-gateway-fallback" not in _ask(demo).headers


def _ask(demo: Demo) -> httpx.Response:
    return httpx.post(f"{demo.url}/v1/chat/completions", json=_body("chain"), timeout=PATIENCE, trust_env=False)


def _until_served_by(demo: Demo, backend: str) -> None:
    wait_until(
        lambda: _ask(demo).headers.get("x-gateway-backend") == backend,
        PATIENCE,
        lambda: f"Not served by {backend}: {demo.log.read_text()[-2000:]}",
    )


def _get(url: str) -> Any:
    return httpx.get(url, timeout=PATIENCE, trust_env=False).raise_for_status().json()


# -- as a program -----------------------------------------------------------------------------------------------------


@needs_curl
def test_it_says_where_it_listens_and_its_first_curl_works(demo: Demo) -> None:
    said = demo.log.read_text()
    assert f"{demo.url}/v1" in said
    curl = re.search(r"^Ask: +(curl .*)$", said, re.M)
    assert curl is not None
    answer = subprocess.run(["bash", "-c", curl[1]], capture_output=True, text=True, timeout=PATIENCE)
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"].strip() == "12*17 is 204."


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_runs_in_any_directory_and_ends_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """Without a file of its own it takes the shipped one. Two of it find ports beside each other."""
    with running_demo(tmp_path, cwd=tmp_path) as demo:
        assert _get(f"{demo.url}/v1/models")["data"]
        demo.process.send_signal(number)
        assert demo.process.wait(PATIENCE) == 0, demo.log.read_text()
    said = demo.log.read_text()
    assert "Traceback" not in said
    assert "Aborted" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["demo.log"]


def test_it_runs_from_a_wheel_with_the_routes_that_are_in_it(tmp_path: Path) -> None:
    wheels, installed = tmp_path / "wheels", tmp_path / "installed"
    wheels.mkdir()
    build = "import sys, hatchling.build; print(hatchling.build.build_wheel(sys.argv[1]))"
    made = subprocess.run(
        [sys.executable, "-c", build, str(wheels)], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert made.returncode == 0, made.stderr
    with zipfile.ZipFile(next(wheels.iterdir())) as wheel:
        wheel.extractall(installed)
    assert not (installed / "gateway" / "routes.yaml").is_symlink()
    start = "import gateway.cli.main as m, sys; print(m.__file__, file=sys.stderr); m.cli()"
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    with running_demo(tmp_path, cwd=tmp_path, program=[sys.executable, "-c", start], environ=environ) as demo:
        assert str(installed) in demo.log.read_text()
        assert {model["id"] for model in _get(f"{demo.url}/v1/models")["data"]} >= {alias.name for alias in CHAT}
        for path in ("/", "/web/app.js", "/web/vendor/uplot/uPlot.iife.min.js"):
            assert httpx.get(demo.url + path, trust_env=False).status_code == 200, path


def test_a_taken_port_is_said_plainly(demo: Demo) -> None:
    port = demo.url.rpartition(":")[2]
    second = subprocess.run([GATEWAY, "demo", "--port", port], capture_output=True, text=True, timeout=PATIENCE)
    assert second.returncode == 1
    assert f"Cannot listen on 127.0.0.1:{port}" in second.stderr
    assert "--port" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_file_with_mistakes_is_said_and_not_served(tmp_path: Path) -> None:
    bad = tmp_path / "routes.yaml"
    bad.write_text("backends: {a: {ulr: 'http://127.0.0.1:1'}}")
    result = CliRunner().invoke(command, ["--config", str(bad), "--port", str(free_ports(1))])
    assert result.exit_code == 1
    assert "did you mean 'url'" in result.stderr
    missing = CliRunner().invoke(command, ["--config", str(tmp_path / "other.yaml")])
    assert missing.exit_code == 2
    assert "there is no file" in missing.stderr


def test_the_shipped_routes_are_those_of_the_repository() -> None:
    assert shipped_routes().read_text() == (ROOT / "routes.yaml").read_text()


def test_nothing_outside_this_machine_is_in_a_simulated_fleet() -> None:
    text = """
server: {shared: "redis://192.168.1.5:6379/0"}
backends:
  a: {url: "http://192.168.1.11:8001"}
  cloud: {engine: openai, url: "https://api.example.com", cloud: true, model: big}
aliases:
  both: [a, cloud]
  far: [cloud]
alerts: {webhook: "https://example.invalid/hook"}
"""
    snapshot = simulated(load_text(text, "routes.yaml", {}).snapshot, {"a": "http://127.0.0.1:5"})
    assert {name: b.url for name, b in snapshot.backends.items()} == {"a": "http://127.0.0.1:5"}
    assert {name: alias.steps for name, alias in snapshot.aliases.items()} == {"both": (("a",),), "a": (("a",),)}
    assert snapshot.alerts.webhook is None
    assert snapshot.server.shared is None
