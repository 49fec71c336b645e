"""Models that an Ollama passes on to another host: a backend that is no cloud never gets a request for one."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.apps.fleet.checking.live import ask_fleet
from gateway.apps.importing.discovery import OLLAMA_VERSION, ServerReply, identify
from gateway.config.load import load_text
from gateway.domain.health_state import State
from gateway.engines.ollama.engine import OllamaEngine
from gateway.engines.ollama.installed_models import INSTALLED, model_windows, remote_models
from simulator import SimOllama
from tests.engines.ollama_lines import ASK as CHATTED
from tests.engines.ollama_lines import DONE, backend, ndjson, said, send
from tests.engines.scripted import ScriptedClient, ScriptedResponse, call_of, state_of
from tests.scripted import raw_post
from tests.support import running_gateway

ASK: dict[str, Any] = {"model": "a", "messages": [{"role": "user", "content": "hello"}]}
HOST = "https://ollama.com:443"


def backends(more: str) -> str:
    return f'backends: {{a: {{engine: ollama, url: "http://10.0.0.1:11434", context: 8192, {more}}}}}'


@pytest.mark.parametrize(
    ("model", "cloud"),
    [
        ("gpt-oss:120b-cloud", True),
        ("gpt-oss:120b-CLOUD", True),
        ("glm-5:cloud", True),
        ("host:5000/team/glm-5:Cloud ", True),
        ("gpt-oss:20b", False),
        ("cloud", False),
        ("my-cloud", False),
        ("nebula-cloud:8b", False),
        ("cloud:8b", False),
        ("host:5000/my-cloud", False),
    ],
)
def test_the_tag_alone_makes_a_cloud_model(model: str, cloud: bool) -> None:
    loaded = load_text(backends(f'model: "{model}"'), environ={})
    assert loaded.snapshot.backends["a"].cloud is cloud
    assert any("its prompts leave the LAN" in warning.message for warning in loaded.warnings) is cloud


def test_a_cloud_model_that_is_declared_needs_no_warning_and_cannot_be_denied() -> None:
    said_so = load_text(backends("model: 'glm-5:cloud', cloud: true"), environ={})
    assert said_so.snapshot.backends["a"].cloud
    assert not [warning for warning in said_so.warnings if "LAN" in warning.message]
    with pytest.raises(Exception, match=r"Ollama sends what is asked of 'glm-5:cloud' to ollama\.com"):
        load_text(backends("model: 'glm-5:cloud', cloud: false"), environ={})


def test_such_a_name_behind_another_engine_may_be_an_ollamas_too() -> None:
    """Ollama's own `/v1` passes requests on like its native API."""
    text = 'backends: {a: {engine: openai, url: "http://10.0.0.1:11434/v1", model: "glm-5:cloud"%s}}'
    silent, denied = (load_text(text % said, environ={}) for said in ("", ", cloud: false"))
    assert silent.snapshot.backends["a"].cloud
    assert any("its prompts leave the LAN" in warning.message for warning in silent.warnings)
    assert not denied.snapshot.backends["a"].cloud  # it need not be an Ollama


@pytest.mark.parametrize("engine", ["openai", "ollama"])
async def test_without_a_name_no_cloud_model_of_the_list_is_used(engine: str) -> None:
    sim = SimOllama(models=["glm-5:cloud"])
    async with sim.serve() as url, running_gateway(f"backends: {{a: {{engine: {engine}, url: '{url}'}}}}") as gateway:
        await gateway.until(lambda: gateway.state("a") is State.MISCONFIGURED)
        assert ((await raw_post(gateway.url, ASK)).status, sim.requests) == (503, [])


@pytest.mark.parametrize("named", [", model: helper", ""])
async def test_a_model_that_runs_elsewhere_under_a_name_of_its_own_gets_no_request(named: str) -> None:
    sim = SimOllama(models=["helper:latest"], remote={"helper:latest": HOST})
    async with sim.serve() as url:
        routes = f"backends: {{a: {{engine: ollama, url: '{url}', context: 8192{named}}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until(lambda: gateway.state("a") is State.MISCONFIGURED)
            state = gateway.gateway.fleet["a"]
            assert "passes requests for model 'helper" in state.health.reason
            assert HOST in state.health.reason
            reply = await raw_post(gateway.url, ASK)
            assert (reply.status, sim.requests) == (503, [])
            sim.remote.clear()  # it was replaced by a model that runs there
            await gateway.until(lambda: gateway.state("a") is State.SUSPECT)
            assert (await raw_post(gateway.url, ASK)).status == 200


async def test_without_a_name_the_first_model_that_runs_there_is_used() -> None:
    sim = SimOllama(models=["helper:latest", "qwen3:8b"], remote={"helper:latest": HOST})
    async with sim.serve() as url, running_gateway(f"backends: {{a: {{engine: ollama, url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        assert gateway.gateway.fleet["a"].model == "qwen3:8b"


async def test_a_declared_cloud_may_have_such_a_model() -> None:
    sim = SimOllama(models=["helper:latest"], remote={"helper:latest": HOST})
    async with sim.serve() as url:
        routes = f"backends: {{a: {{engine: ollama, url: '{url}', context: 8192, model: helper, cloud: true}}}}\n"
        routes += "aliases: {a: {use: [a]}}"
        async with running_gateway(routes) as gateway:
            assert (await raw_post(gateway.url, ASK)).status == 200
            assert (await raw_post(gateway.url, ASK, headers=["x-gateway-local-only: 1"])).status == 503


async def test_an_answer_of_another_host_takes_the_backend_out() -> None:
    upstream = ScriptedResponse(200, (ndjson({**said(content="hi"), **DONE, "remote_host": HOST}),))
    state = state_of(backend(), ScriptedClient(upstream))
    response = await OllamaEngine().send(state, call_of(CHATTED))
    await response.read_all(10_000)
    assert state.health.state is State.MISCONFIGURED


async def test_a_name_of_a_cloud_model_is_refused_before_anything_is_sent() -> None:
    response, _, client = await send(ndjson({**said(content="hi"), **DONE}), model="glm-5:cloud")
    assert (response.status, client.sent) == (400, [])


async def test_the_live_check_says_it() -> None:
    sim = SimOllama(models=["helper", "small"], remote={"helper": HOST}, trained=4096)
    async with sim.serve() as url:
        routes = "".join(
            f"  {name}: {{engine: ollama, url: '{url}', model: {name}, context: {context}}}\n"
            for name, context in (("helper", 4096), ("small", 8192))
        )
        remote, small = await ask_fleet(load_text("backends:\n" + routes, environ={}).snapshot)
        assert "passes requests for model 'helper' on to another host" in remote.problems[0]
        assert small.problems == ("its window is 4,096 tokens, the file says 8,192",)


def test_a_scan_offers_only_models_that_run_there() -> None:
    tags = {"models": [{"name": "glm-5:cloud", "remote_model": "glm-5"}, {"name": "qwen3:8b"}]}
    replies = {OLLAMA_VERSION: ServerReply(200, {"version": "0.33.0"}), INSTALLED: ServerReply(200, tags)}
    assert [model.name for model in identify("http://h:11434", replies).models] == ["qwen3:8b"]


@pytest.mark.parametrize("answer", [None, [], {}, {"models": 3}, {"models": [3, {}, {"name": ""}]}, {"data": []}])
def test_what_is_no_list_names_no_model(answer: Any) -> None:
    assert remote_models(answer) == {} == model_windows(answer)


def test_a_host_that_is_no_text_is_a_host_all_the_same() -> None:
    entries = [{"name": "x:latest", "remote_host": 7}, {"name": "y", "remote_model": "z"}]
    assert set(remote_models({"models": entries})) == {"x", "x:latest", "y"}
