"""mlx_lm.server alone: its models, and the death of its generation thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.domain.health_state import State
from tests.vllm.turns import client_on, turn_of

from .conftest import HERE, Start
from .processes import HF_NAME, RealServer
from .questions import HELLO, HELLO_SAID, NO_THOUGHTS, user

QUIET: Any = {"temperature": 0, "extra_body": NO_THOUGHTS}
WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
FAST = "health: {every: 200ms, recover_after: 1}"
CACHED = ("a/first", "b/second", "c/third")


@pytest.fixture
def cache(engines: Path, tmp_path: Path) -> Path:
    """A cache of Hugging Face with the models of CACHED."""
    command = [sys.executable, str(HERE / "make_hf_cache.py"), str(engines / "taught"), str(tmp_path), *CACHED]
    subprocess.run(command, check=True)
    return tmp_path


async def test_no_model_of_its_cache_is_loaded_but_the_one_it_was_started_with(
    start: Start, engines: Path, cache: Path, http: httpx.AsyncClient
) -> None:
    server = start("mlx", "--model", str(engines / "taught"), HF_HOME=str(cache))
    listed = (await http.get(server.url + "/v1/models")).json()["data"]
    assert {card["id"] for card in listed} >= set(CACHED)
    async with client_on({"b": f"url: '{server.url}', engine: mlx, context: 8192"}, {"a": "[b]"}) as client:
        for _ in range(3):
            turn = await turn_of(client.sdk, "a", user(HELLO), stream=False, **QUIET)
            assert turn.content.strip() == HELLO_SAID
        assert client.gateway.gateway.fleet["b"].model == "default_model"


async def test_without_a_cache_its_list_is_empty_and_it_serves(
    start: Start, engines: Path, tmp_path: Path, http: httpx.AsyncClient
) -> None:
    server = start("mlx", "--model", str(engines / "taught"), HF_HOME=str(tmp_path / "none"))
    listed = await http.get(server.url + "/v1/models")
    assert (listed.status_code, listed.content) == (200, b"")
    async with client_on({"b": f"url: '{server.url}', engine: mlx, context: 8192"}, {"a": "[b]"}) as client:
        turn = await turn_of(client.sdk, "a", user(HELLO), stream=False, **QUIET)
    assert turn.content.strip() == HELLO_SAID


@WAYS
async def test_its_dead_generation_thread_fails_over_until_it_is_started_again(
    start: Start, mlx: RealServer, http: httpx.AsyncClient, stream: bool
) -> None:
    dying = start("mlx", "--model", HF_NAME)
    backends = {
        name: f"url: '{server.url}', engine: mlx, context: 8192, {FAST}" for name, server in (("b", dying), ("c", mlx))
    }
    async with client_on(backends, {"a": "[b, c]"}) as client:
        assert (await turn_of(client.sdk, "a", user(HELLO), stream=stream, **QUIET)).backend == "b"
        killed = await http.post(dying.url + "/v1/completions", json={"prompt": ["a", "b"], "max_tokens": 2})
        assert (killed.status_code, killed.json()) == (404, {"error": "generation thread died"})
        turn = await turn_of(client.sdk, "a", user(HELLO), stream=stream, **QUIET)
        assert (turn.backend, turn.content.strip()) == ("c", HELLO_SAID)
        await client.gateway.until(lambda: client.gateway.state("b") is State.DOWN)
        dying.stop()
        dying.up()
        await client.gateway.until_ready("b")
        assert (await turn_of(client.sdk, "a", user(HELLO), stream=stream, **QUIET)).backend == "b"
