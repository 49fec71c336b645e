"""`gateway init` on real sockets: it finds simulated servers, sees what they can do, and writes what is then loaded."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.ports import free_ports
from gateway.cli.main import cli
from gateway.config.load import load
from simulator import SimOllama, SimVllm
from simulator.base import Sim
from tests.demo_process import ROOT
from tests.support import PATIENCE

QWEN = "RedHatAI/Qwen3.6-35B-A3B-NVFP4"


@dataclass
class Done:
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def run(*arguments: str) -> Done:
    """The command, without a terminal."""
    result = await asyncio.to_thread(CliRunner().invoke, cli, ["init", *arguments])
    return Done(result.exit_code, result.stdout, result.stderr)


async def run_at_terminal(typed: str, *arguments: str) -> Done:
    """The command as its own process, where somebody types this."""
    master, stdin = pty.openpty()
    try:
        os.write(master, typed.encode())
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "init", *arguments),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(6 * PATIENCE):
            out, err = await process.communicate()
    finally:
        os.close(master)
        os.close(stdin)
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


@asynccontextmanager
async def found(*sims: Sim) -> AsyncIterator[list[str]]:
    """HOST:PORT of each."""
    async with AsyncExitStack() as stack:
        yield [(await stack.enter_async_context(sim.serve())).removeprefix("http://") for sim in sims]


def qwen() -> SimVllm:
    return SimVllm(served=[QWEN, "qwen"], tool_parser="qwen3_xml", reasoning_parser="qwen3")


async def test_it_writes_what_it_found_and_saw(tmp_path: Path) -> None:
    ollama = SimOllama(models=["qwen3:8b"])
    async with found(qwen(), SimVllm(served=["google/gemma-4-26B-A4B-it"], tool_parser=None), ollama) as hosts:
        done = await run(*hosts)
        assert done.code == 0, done.err
        snapshot = load(tmp_path / "routes.yaml", {}).snapshot
    main, gemma, small = snapshot.backends.values()
    assert (main.name, main.model, main.context) == ("qwen3.6-35b-a3b", QWEN, 131072)
    assert (main.tool_parser, main.reasoning_parser, main.thinking) == ("qwen3_xml", "qwen3", "optional")
    assert gemma.tool_parser == "none"
    assert (small.engine, small.model) == ("ollama", "qwen3:8b")
    assert snapshot.aliases["default"].steps == ((main.name,), (gemma.name,), (small.name,))
    assert snapshot.aliases[main.name].also == ("qwen",)
    assert f"http://{hosts[0]}  vllm  {QWEN} (131,072)" in done.err
    assert f"{main.name}: tool_auto yes" in done.err
    assert not ollama.requests or all(request.path == "/api/show" for request in ollama.requests)  # nothing was loaded


async def test_the_file_serves(tmp_path: Path) -> None:
    async with found(qwen()) as hosts:
        assert (await run(*hosts, "--no-probe")).code == 0
        result = await asyncio.to_thread(
            CliRunner().invoke, cli, ["check", "--live", "--config", str(tmp_path / "routes.yaml")]
        )
    assert result.exit_code == 0, result.output


async def test_without_a_probe_nothing_is_asked_for_an_answer(tmp_path: Path) -> None:
    sim = qwen()
    async with found(sim) as hosts:
        assert (await run(*hosts, "--no-probe")).code == 0
    assert not sim.requests
    assert load(tmp_path / "routes.yaml", {}).snapshot.backends["qwen3.6-35b-a3b"].tool_parser is None


async def test_a_server_is_recognised_by_what_it_shows_without_being_asked_for_an_answer(tmp_path: Path) -> None:
    info = {"model_id": "m", "max_total_tokens": 4096, "max_concurrent_requests": 128}
    tgi = SimVllm(served=["m"], generic=True, shows={"/info": info})
    llama = SimVllm(served=["a"], generic=True, owned_by="llamacpp", shows={"/props": {"total_slots": 4}})
    async with found(tgi, llama) as hosts:
        done = await run(*hosts, "--no-probe")
    assert done.code == 0, done.err
    backends = load(tmp_path / "routes.yaml", {}).snapshot.backends
    assert (backends["m"].engine, backends["m"].server, backends["m"].context) == ("openai", "tgi", 4096)
    assert (backends["a"].engine, backends["a"].slots) == ("llamacpp", 4)
    assert not tgi.requests
    assert not llama.requests
    assert f"http://{hosts[0]}  tgi  m (4,096)" in done.err


async def test_nothing_found_is_told_and_nothing_written(tmp_path: Path) -> None:
    done = await run(f"127.0.0.1:{free_ports(1)}")
    assert done.code == 1
    assert "No model server was found" in done.err
    assert not os.listdir(tmp_path)
    done = await run(f"127.0.0.1:{free_ports(1)}", "--json")
    assert (done.code, json.loads(done.out)["ok"]) == (1, False)


async def test_json_for_scripts(tmp_path: Path) -> None:
    async with found(qwen()) as hosts:
        done = await run(*hosts, "--json", "--no-probe")
    told = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert (told["ok"], told["written"]) == (True, "routes.yaml")
    assert told["servers"][0]["models"][0]["context"] == 131072
    assert list(told["backends"]) == ["qwen3.6-35b-a3b"]
    assert (tmp_path / "routes.yaml").exists()


async def test_at_a_terminal_it_asks(tmp_path: Path) -> None:
    sim = qwen()
    async with found(sim) as hosts:
        refused = await run_at_terminal(f"{hosts[0]}\nn\nn\n")
        assert refused.code == 1
        assert "Hosts to scan" in refused.err
        assert "nothing is written" in refused.err
        assert not (tmp_path / "routes.yaml").exists()
        done = await run_at_terminal("n\ny\n", *hosts)
    assert done.code == 0, done.err
    assert "Write routes.yaml?" in done.err
    assert not sim.requests
    assert (tmp_path / "routes.yaml").exists()


async def test_a_file_that_is_there_is_never_overwritten_without_force(tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text("mine")
    async with found(qwen()) as hosts:
        done = await run(*hosts, "--no-probe")
        assert (done.code, "--force" in done.err, file.read_text()) == (2, True, "mine")
        assert (await run(*hosts, "--no-probe", "--force")).code == 0
    assert load(file, {}).snapshot.backends


def test_wrong_usage_exits_2() -> None:
    for arguments in (
        ["http://h/x/y"],
        ["h:99999"],
        ["--ports", "x"],
        ["--ports", "1-99999"],
        ["--ports", ""],
        ["ftp://h"],
    ):
        result = CliRunner().invoke(cli, ["init", *arguments, "-o", "/nonexistent/none.yaml"])
        assert result.exit_code == 2, arguments
