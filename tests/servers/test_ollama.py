"""A real Ollama behind the gateway, with models of both kinds of templates (ollama/install.sh builds it), or the one of
`OLLAMA_URL` with `OLLAMA_MODEL`, a model that nobody else uses: it is loaded and unloaded here."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.servers.questions import (
    BOTH,
    COUNT,
    COUNT_SAID,
    HELLO,
    HELLO_SAID,
    PRODUCT,
    PRODUCT_SAID,
    THOUGHTS,
    TOOLS,
    WEATHER,
    user,
)
from tests.support import RunningGateway, running_gateway
from tests.waiting import wait_until

URL, MODEL = os.environ.get("OLLAMA_URL", ""), os.environ.get("OLLAMA_MODEL", "")
NATIVE, GO = "native", "gothink"
MODELS = [MODEL] if URL and MODEL else [NATIVE, GO]
LOAD = 20.0  # seconds that a slow load takes: longer than the time until a sign of life
PATIENCE = 600
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PICTURE = f"data:image/png;base64,{PIXEL}"

pytestmark = pytest.mark.timeout(PATIENCE)
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def folder() -> Path:
    engines = Path(os.environ.get("ENGINES", Path(__file__).parents[2] / ".venv-engines"))
    return Path(os.environ.get("OLLAMA_DIR", engines / "ollama")).absolute()


def started(folder: Path, log: Path, **environ: str) -> tuple[subprocess.Popen[bytes], str]:
    """An Ollama of its own on a free port, up."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    given = {"HOME": str(folder / "home"), "OLLAMA_HOST": f"127.0.0.1:{port}", "OLLAMA_MODELS": str(folder / "store")}
    given |= {"OLLAMA_NO_CLOUD": "1", "OLLAMA_NOPRUNE": "1", "PATH": os.environ["PATH"], **environ}
    process = subprocess.Popen(
        [str(folder / "bin/ollama"), "serve"], env=given, stdout=log.open("wb"), stderr=subprocess.STDOUT
    )
    url = f"http://127.0.0.1:{port}"

    def is_up() -> bool:
        try:
            return httpx.get(f"{url}/api/version", timeout=2, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    wait_until(is_up, 60, log.read_text)
    return process, url


@pytest.fixture(scope="module")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if URL and MODEL:
        yield URL
        return
    if not (folder / "models/made").exists():
        pytest.skip("no real Ollama: set OLLAMA_GIT for tests/servers/run.sh, or OLLAMA_URL and OLLAMA_MODEL")
    process, place = started(folder, tmp_path_factory.mktemp("ollama") / "log")
    yield place
    process.terminate()
    process.wait(30)


async def asked(url: str, path: str, **body: Any) -> Any:
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as client:
        reply = await (client.post(path, json=body) if body else client.get(path))
        return reply.json()


async def held(url: str, model: str) -> dict[str, Any] | None:
    models = (await asked(url, "/api/ps"))["models"]
    return next((one for one in models if one["name"].removesuffix(":latest") == model.removesuffix(":latest")), None)


@asynccontextmanager
async def desk(
    url: str, model: str, more: str = "", rest: str = "", engine: str = "ollama"
) -> AsyncIterator[RunningGateway]:
    """A gateway with this model, unloaded, as its alias `desk`."""
    await asked(url, "/api/generate", model=model, keep_alive=0)
    backend = f"{{engine: {engine}, url: '{url}', model: '{model}', context: 2048{more}}}"
    routes = f"defaults: {{health: {{every: 200ms}}}}\nbackends: {{desk: {backend}}}{rest}"
    async with running_gateway(routes) as gateway:
        await gateway.until(lambda: gateway.gateway.fleet["desk"].reported.loaded is not None)
        yield gateway


async def chat(gateway: RunningGateway, text: str = HELLO, status: int = 200, **more: Any) -> Any:
    body = {"model": "desk", "messages": user(text), "max_tokens": 100, "temperature": 0, **more}
    reply = await gateway.client.post("/v1/chat/completions", json=body, timeout=PATIENCE)
    assert reply.status_code == status, reply.text
    return reply.json()


async def streamed(gateway: RunningGateway, text: str, **more: Any) -> tuple[list[Any], list[str]]:
    """(the chunks, the comments) of a stream that ends with [DONE]."""
    body = {"model": "desk", "messages": user(text), "max_tokens": 100, "temperature": 0, "stream": True, **more}
    reply = await gateway.client.post("/v1/chat/completions", json=body, timeout=PATIENCE)
    lines = [line for line in reply.text.splitlines() if line]
    assert lines[-1] == "data: [DONE]", reply.text
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return chunks, [line for line in lines if line.startswith(":")]


def calls_of(answer: Any) -> list[tuple[str, Any]]:
    calls = answer["choices"][0]["message"].get("tool_calls") or []
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


# -- loads, and a guest in somebody's Ollama --------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
async def test_a_load_is_waited_for_and_outlives_the_client_that_left(url: str, model: str) -> None:
    async with desk(url, model) as gateway:
        first = asyncio.create_task(chat(gateway))
        await gateway.until(lambda: gateway.gateway.fleet["desk"].load is not None)
        first.cancel()
        await chat(gateway)
        assert gateway.gateway.fleet["desk"].health.fails == 0


async def test_a_slow_load_is_one_load_for_all_who_wait_and_shows_signs_of_life(folder: Path, tmp_path: Path) -> None:
    if not (folder / "models/made").exists():
        pytest.skip("no Ollama whose loads can be slowed: set OLLAMA_GIT for tests/servers/run.sh")
    process, url = started(folder, tmp_path / "log", LOAD_DELAY=str(LOAD))
    try:
        async with desk(url, NATIVE) as gateway:
            leaves = asyncio.create_task(chat(gateway))
            await gateway.until(lambda: gateway.gateway.fleet["desk"].load is not None)
            leaves.cancel()
            said = await asyncio.gather(chat(gateway), chat(gateway), streamed(gateway, HELLO))
            assert said[2][1], "no comment came while it loaded"
            assert gateway.gateway.fleet["desk"].health.fails == 0
            assert (gateway.gateway.fleet["desk"].load_seconds or 0) >= LOAD
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("model", MODELS)
async def test_a_user_and_the_gateway_in_turns_need_one_load(url: str, model: str) -> None:
    async with desk(url, model) as gateway:
        await chat(gateway)
        options = {"num_ctx": 2048, "num_predict": 5}
        answer = await asked(url, "/api/chat", model=model, messages=user(HELLO), stream=False, options=options)
        assert answer["load_duration"] < 0.5e9, "it was loaded already"


@pytest.mark.parametrize("model", MODELS)
async def test_what_others_have_loaded_is_left_as_it_is(url: str, model: str) -> None:
    async with desk(url, model, ", health: {canary: 100ms}") as gateway:
        await asked(url, "/api/generate", model=model, keep_alive="30m", options={"num_ctx": 1024})
        before = await held(url, model)
        state = gateway.gateway.fleet["desk"]
        await gateway.until(lambda: state.held is not None)
        await asyncio.sleep(3)  # so many canaries would be due
        assert before is not None
        assert await held(url, model) == before


@pytest.mark.parametrize("model", MODELS)
async def test_what_is_loaded_is_told(url: str, model: str) -> None:
    async with desk(url, model) as gateway:
        await chat(gateway)

        async def told() -> Any:
            return (await gateway.client.get("/status")).json()["backends"]["desk"]["held"]

        await gateway.until(lambda: gateway.gateway.fleet["desk"].held is not None)
        seen = await told()
        assert (seen["loaded"], seen["window"]) == (True, 2048)
        assert seen["until"] is not None


# -- the window -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("turns", [1, 40])
async def test_a_prompt_over_the_window_is_refused_and_not_cut(url: str, model: str, turns: int) -> None:
    messages = user("hello " * (9000 // turns)) * turns
    async with desk(url, model) as gateway:
        body = {"model": "desk", "messages": messages}
        reply = await gateway.client.post("/v1/chat/completions", json=body, timeout=PATIENCE)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("model", MODELS)
async def test_an_ollama_behind_engine_openai_is_recognised_and_cuts_nothing(url: str, model: str) -> None:
    async with desk(url, model, engine="openai") as gateway:
        assert gateway.gateway.fleet["desk"].server == "ollama"
        body = {"model": "desk", "messages": user("hello " * 9000)}
        reply = await gateway.client.post("/v1/chat/completions", json=body, timeout=PATIENCE)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert (await chat(gateway, COUNT))["choices"][0]["message"]["content"].strip() == COUNT_SAID


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [one for one in MODELS if one != MODEL])
async def test_thoughts_and_text_come_apart_whole_and_streamed(url: str, model: str) -> None:
    async with desk(url, model) as gateway:
        message = (await chat(gateway, PRODUCT, reasoning_effort="medium"))["choices"][0]["message"]
        assert (message["content"].strip(), message["reasoning"].strip()) == (PRODUCT_SAID, THOUGHTS)
        chunks, _ = await streamed(gateway, PRODUCT, reasoning_effort="medium")
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas).strip() == PRODUCT_SAID
        assert "".join(delta.get("reasoning") or "" for delta in deltas).strip() == THOUGHTS
        off = (await chat(gateway, PRODUCT, chat_template_kwargs={"enable_thinking": False}))["choices"][0]["message"]
        assert (off["content"].strip(), off.get("reasoning") or "") == (PRODUCT_SAID, "")


@pytest.mark.parametrize("model", [one for one in MODELS if one != MODEL])
async def test_tools_are_called_as_it_was_chosen(url: str, model: str) -> None:
    async with desk(url, model) as gateway:
        off: dict[str, Any] = {"reasoning_effort": "none"}
        assert calls_of(await chat(gateway, WEATHER, tools=TOOLS, **off)) == [("get_weather", {"city": "Oslo"})]
        assert calls_of(await chat(gateway, HELLO, tools=TOOLS, tool_choice="none", **off)) == []
        assert len(calls_of(await chat(gateway, BOTH, tools=TOOLS, **off))) == 2
        required = await chat(gateway, WEATHER, tools=TOOLS, tool_choice="required", **off)
        assert calls_of(required) == [("get_weather", {"city": "Oslo"})]
        named = {"type": "function", "function": {"name": "get_time"}}
        assert calls_of(await chat(gateway, WEATHER, tools=TOOLS, tool_choice=named, **off))[0][0] == "get_time"


@pytest.mark.parametrize("model", [one for one in MODELS if one != MODEL])
async def test_a_call_that_the_limit_cuts_off_is_length_and_no_failure(url: str, model: str) -> None:
    async with desk(url, model) as gateway:
        cut = await chat(gateway, WEATHER, tools=TOOLS, max_tokens=14, reasoning_effort="none")
        assert cut["choices"][0]["finish_reason"] == "length"
        assert gateway.gateway.fleet["desk"].health.fails == 0


async def test_a_schema_is_kept(url: str) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    async with desk(url, MODELS[0]) as gateway:
        answer = await chat(gateway, "Name a city as JSON.", response_format=form, reasoning_effort="none")
        assert "city" in json.loads(answer["choices"][0]["message"]["content"])


# -- what it cannot do ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
async def test_what_it_cannot_do_goes_to_the_next_or_is_refused_with_its_reason(url: str, model: str) -> None:
    def seen(picture: str) -> Any:
        parts = [{"type": "text", "text": HELLO}, {"type": "image_url", "image_url": {"url": picture}}]
        return [{"role": "user", "content": parts}]

    async with desk(url, model) as gateway:
        for body in ({"n": 2}, {"messages": seen("https://pictures.example/a.png")}, {"messages": seen(PICTURE)}):
            error = (await chat(gateway, status=400, **body))["error"]
            assert error["code"] in ("input_unsupported", "invalid_request_body", None), error
        assert gateway.gateway.fleet["desk"].health.fails == 0
        assert (await chat(gateway))["choices"][0]["message"]["content"].strip().endswith(HELLO_SAID)


async def test_a_model_that_is_not_there_is_told_with_how_to_get_it(url: str) -> None:
    backend = f"{{engine: ollama, url: '{url}', model: 'nowhere:1b', context: 2048}}"
    async with running_gateway(f"defaults: {{health: {{every: 200ms}}}}\nbackends: {{desk: {backend}}}") as gateway:
        body = {"model": "desk", "messages": user(HELLO)}
        reply = await gateway.client.post("/v1/chat/completions", json=body, timeout=PATIENCE)
        assert reply.status_code >= 400
        assert "ollama pull nowhere:1b" in reply.text


async def test_thoughts_that_a_template_drops_are_named_by_a_probe(url: str) -> None:
    if URL and MODEL:
        pytest.skip("the template of OLLAMA_MODEL is not known")
    for model, expected in ((NATIVE, "no"), (GO, "yes")):
        async with desk(url, model) as gateway:
            await chat(gateway)
            reply = await gateway.client.post("/admin/backends/desk/probe?now=1", timeout=PATIENCE)
            findings = json.loads(reply.text.splitlines()[-1])
            found = findings["checks"]["thoughts_kept"]
            assert found["result"] == expected, findings
