"""`gateway probe`: through the running gateway, from here, and what its exit code says."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench.ports import free_ports
from gateway.apps.probing.command import deviations
from gateway.apps.probing.report import problems, required_checks
from gateway.cli.main import cli
from gateway.config.snapshot import Backend
from gateway.domain.facts import Observation
from gateway.health.checks import ALL
from simulator import SimOllama, SimVllm
from tests.demo_process import ROOT
from tests.scripted import answer, scripted
from tests.support import PATIENCE, RunningGateway, running_gateway

QWEN, INSTRUCT = "RedHatAI/Qwen3.6-35B-A3B-NVFP4", "Qwen3-4B-Instruct-2507"
NOWHERE = "http://127.0.0.1:9"
OPS = "ops-key-1"


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


async def run(*arguments: str, **environ: str) -> Done:
    """The command, as its own process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "probe", *arguments),
        cwd=ROOT,
        env={**os.environ, **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(6 * PATIENCE):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


def routes(folder: Path, backends: Sequence[str], more: str = "", port: int | None = None) -> str:
    path = folder / "routes.yaml"
    port = free_ports(1) if port is None else port
    path.write_text(
        "\n".join([f"server: {{listen: '127.0.0.1:{port}'}}", "backends:", *(f"  {b}" for b in backends), more])
    )
    return str(path)


@asynccontextmanager
async def simulated(*sims: SimVllm | SimOllama) -> AsyncIterator[list[str]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(sim.serve()) for sim in sims]


@asynccontextmanager
async def running(file: str) -> AsyncIterator[tuple[RunningGateway, str]]:
    """The gateway of this file, and the same file with the port where it listens."""
    async with running_gateway(read(file)) as gateway:
        port = gateway.url.rpartition(":")[2]
        change(file, read(file).partition("\n")[0], f"server: {{listen: '127.0.0.1:{port}'}}")
        yield gateway, file


def read(file: str) -> str:
    return Path(file).read_text()


def change(file: str, before: str, after: str) -> None:
    Path(file).write_text(read(file).replace(before, after))


def qwen(**more: Any) -> SimVllm:
    return SimVllm(**{"served": [QWEN], "tool_parser": "qwen3_coder", "reasoning_parser": "qwen3", **more})


# -- through the gateway ----------------------------------------------------------------------------------------------


async def test_the_running_gateway_looks_and_then_knows(tmp_path: Path) -> None:
    sims = (qwen(), SimVllm(served=[INSTRUCT], tool_parser=None))
    async with simulated(*sims) as (good, bad):
        backends = (f"good: {{url: '{good}', tool_parser: qwen3_coder}}", f"bad: {{url: '{bad}', tool_parser: hermes}}")
        async with running(routes(tmp_path, backends)) as (gateway, file):
            await gateway.until_ready("good", "bad")
            done = await run("--config", file)
            assert done.code == 1, done.err
            table = [line.split() for line in done.out.splitlines()]
            assert table[0] == ["good", "bad"]
            assert table[1] == ["plain", "yes", "yes"]
            assert ["tool_auto", "yes", "no"] in table
            assert "  reasoning, thinking_on, thinking_off untested: it never thinks" in done.out
            assert "start vLLM with --enable-auto-tool-choice --tool-call-parser hermes" in done.out
            assert "  drift: tool_parser: hermes is declared" in done.out
            assert "\n3 problems\n  bad: tool_auto: " in done.out
            assert "good: tool_auto yes" in done.err.splitlines()
            assert "bad: tool_auto no" in done.err.splitlines()
            assert gateway.gateway.fleet["bad"].facts.observed["tool_auto"].result == "no"
            assert gateway.gateway.fleet["good"].facts.observed["tool_auto"].result == "yes"
            one = await run("good", "--config", file, "--json")
            assert (one.code, one.err) == (0, "")
            assert (one.json["ok"], one.json["asked"]) == (True, "gateway")
            assert [findings["backend"] for findings in one.json["backends"]] == ["good"]
            checks = one.json["backends"][0]["checks"]
            assert {seen["result"] for name, seen in checks.items() if name != "thoughts_kept"} == {"yes"}


async def test_a_gateway_with_clients_wants_an_admins_key(tmp_path: Path) -> None:
    async with simulated(qwen()) as (url,):
        file = routes(tmp_path, [f"a: {{url: '{url}'}}"], f"clients: {{ops: {{key: '{OPS}', admin: true}}}}")
        async with running(file) as (gateway, _):
            await gateway.until_ready("a")
            refused = await run("--config", file)
            assert refused.code == 2
            assert "--key KEY, or GATEWAY_KEY" in refused.err
            assert (await run("--config", file, "--key", OPS)).code == 0
            assert (await run("--config", file, GATEWAY_KEY=OPS)).code == 0


async def test_a_backend_that_does_not_answer_is_a_problem(tmp_path: Path) -> None:
    done = await run("--config", routes(tmp_path, [f"a: {{url: '{NOWHERE}'}}"]), "--json")
    assert done.code == 1
    (findings,) = done.json["backends"]
    assert findings["state"] == "warming"
    assert len(findings["problems"]) == 1
    assert findings["problems"][0].startswith("no answer: no connection")


async def test_a_backend_that_hangs_is_a_problem(tmp_path: Path) -> None:
    sim = qwen()
    async with simulated(sim) as (url,):
        sim.fault("hang_engine")
        backends = [f"a: {{url: '{url}', timeouts: {{first_byte: 500ms}}}}"]
        done = await run("--config", routes(tmp_path, backends), "--json")
    assert done.code == 1
    assert done.json["backends"][0]["checks"]["plain"]["seen"].startswith("no answer: none within")
    assert done.json["backends"][0]["checks"]["tool_auto"]["result"] == "untested"


async def test_a_backend_that_refuses_the_key_is_a_problem(tmp_path: Path) -> None:
    async with simulated(qwen(api_key="right")) as (url,):
        done = await run("--config", routes(tmp_path, [f"a: {{url: '{url}', api_key: wrong}}"]))
        assert done.code == 1
        assert "refuses our credential (401); check its api_key" in done.out
        right = routes(tmp_path, [f"a: {{url: '{url}', api_key: right}}"])
        assert (await run("--config", right)).code == 0


async def test_a_cloud_is_asked_when_it_is_named(tmp_path: Path) -> None:
    sim = SimVllm(served=["m"], generic=True)
    async with simulated(sim) as (url,):
        file = routes(tmp_path, [f"cloud: {{engine: openai, url: '{url}', cloud: true, model: m}}"])
        assert (await run("--config", file)).code == 0
        assert not sim.requests
        assert (await run("cloud", "--config", file)).code == 0
        assert sim.requests


async def test_a_stream_of_junk_is_shown_in_words(tmp_path: Path) -> None:
    async def script(turn: Any) -> None:
        await turn.send(answer(b"<html><title>It works</title></html>", content_type="text/html"))

    async with scripted(script) as backend:
        done = await run("--config", routes(tmp_path, [f"a: {{url: '{backend.url}'}}"]))
    assert done.code == 1
    assert "plain no: answered 200 with something that is not JSON: '<html><title>It works" in done.out


# -- usage ------------------------------------------------------------------------------------------------------------


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["probe", *arguments])
    return result.exit_code, result.output


def test_wrong_usage_exits_2(tmp_path: Path) -> None:
    file = routes(
        tmp_path, [f"qwen: {{url: '{NOWHERE}'}}", f"asr: {{engine: http, url: '{NOWHERE}', serves: [speech]}}"]
    )
    assert invoke("--config", str(tmp_path / "none.yaml"))[0] == 2
    code, said = invoke("qwn", "--config", file)
    assert (code, "did you mean 'qwen'?" in said) == (2, True)
    code, said = invoke("asr", "--config", file)
    assert (code, "audio server" in said) == (2, True)


def test_a_file_with_mistakes_exits_1(tmp_path: Path) -> None:
    code, said = invoke("--config", routes(tmp_path, ["a: {apibase: x}"]))
    assert (code, "unknown key 'apibase'" in said) == (1, True)


# -- what counts as a problem -----------------------------------------------------------------------------------------

ALL_NO = {name: Observation("no", "bad") for name in ALL}
PROMISES: tuple[tuple[dict[str, Any], set[str]], ...] = (
    ({}, {"plain", "stream", "arithmetic", "json_schema", "window"}),
    ({"engine": "openai"}, {"plain", "stream", "arithmetic"}),
    ({"engine": "ollama"}, {"plain", "stream", "arithmetic", "json_schema"}),
    ({"engine": "openai", "tool_parser": "hermes"},
     {"plain", "stream", "arithmetic", "tool_auto", "tool_stream", "tool_required", "tool_named"}),
    ({"engine": "openai", "tool_parser": "gemma4"}, {"plain", "stream", "arithmetic", "tool_auto", "tool_stream"}),
    ({"engine": "openai", "tool_parser": "hermes", "auto_tools": False},
     {"plain", "stream", "arithmetic", "tool_required", "tool_named"}),
    ({"engine": "openai", "tool_parser": "none"}, {"plain", "stream", "arithmetic"}),
    ({"engine": "openai", "reasoning_parser": "qwen3"}, {"plain", "stream", "arithmetic", "reasoning"}),
    ({"engine": "openai", "thinking": "optional"},
     {"plain", "stream", "arithmetic", "reasoning", "thinking_on", "thinking_off"}),
)  # fmt: skip


@pytest.mark.parametrize(("declared", "checks"), PROMISES)
def test_a_no_is_a_problem_where_better_is_promised(declared: dict[str, Any], checks: set[str]) -> None:
    backend = Backend("a", url=NOWHERE, **declared)
    assert required_checks(backend) == checks
    assert {problem.partition(":")[0] for problem in problems(backend, ALL_NO)} == checks
    assert problems(backend, {name: Observation("mended", "") for name in ALL}) == []


def test_reasons_that_are_the_same_are_told_once() -> None:
    checks = {"plain": {"result": "yes", "seen": "x"}, "stream": {"result": "untested", "seen": "y"}}
    checks["window"] = checks["stream"]
    assert deviations({"checks": checks}) == {("untested", "y"): ["stream", "window"]}
