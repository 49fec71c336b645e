"""Which process probes: the running gateway where there is one, else the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator import SimOllama
from tests.apps.probing.test_command import NOWHERE, QWEN, change, qwen, routes, run, running, simulated
from tests.scripted import scripted


async def test_a_gateway_that_runs_with_another_file_says_so(tmp_path: Path) -> None:
    async with simulated(qwen()) as (url,), running(routes(tmp_path, [f"a: {{url: '{url}'}}"])) as (_, file):
        change(file, "  a:", "  b:")
        done = await run("--config", file)
        assert done.code == 2
        assert "There is no backend 'b'" in done.err
        assert "--direct" in done.err


async def test_what_listens_there_and_is_no_gateway_is_not_taken_for_one(tmp_path: Path) -> None:
    async def script(_: Any) -> None: ...

    async with scripted(script) as other, simulated(qwen()) as (url,):
        file = routes(tmp_path, [f"a: {{url: '{url}'}}"], port=int(other.url.rpartition(":")[2]))
        done = await run("--config", file)
        assert done.code == 2
        assert "does not answer as a gateway" in done.err
        assert (await run("--config", file, "--direct")).code == 0


async def test_without_a_gateway_the_backends_are_asked_from_here(tmp_path: Path) -> None:
    sims = (qwen(), SimOllama(models=["qwen3:8b"]))
    async with simulated(*sims) as (vllm, ollama):
        backends = [
            f"vllm: {{url: '{vllm}'}}",
            f"small: {{engine: ollama, url: '{ollama}', model: 'qwen3:8b', context: 8192}}",
            f"parked: {{url: '{NOWHERE}', run: on_demand}}",
            "cloud: {engine: openai, url: 'https://api.example.com', cloud: true, model: m}",
            f"speech: {{engine: http, url: '{NOWHERE}', serves: [speech]}}",
        ]
        done = await run("--config", routes(tmp_path, backends))
    assert done.code == 0, done.out + done.err
    assert "No gateway runs at http://127.0.0.1:" in done.err
    assert done.out.splitlines()[0].split() == ["vllm", "small"]
    assert f"\nvllm  vllm  {QWEN}  ready\n" in done.out
    assert "\nParked: parked\n" in done.out
    assert "Not asked: cloud, a cloud" in done.out
    assert "Not asked: speech, an audio server" in done.out
    assert sims[1].requests
