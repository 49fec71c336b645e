"""`gateway bench` as a user runs it: its table, its chart, its JSON, and wrong usage."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli.main import cli
from tests.apps.bench.measuring import FEW, NOWHERE, chats, qwen
from tests.demo_process import ROOT
from tests.support import PATIENCE, running_gateway

TEXT = f"""
backends:
  a: {{url: "{NOWHERE}"}}
  asr: {{engine: http, url: "{NOWHERE}", serves: [transcriptions]}}
aliases: {{chat: [a], long: {{use: [a], min_max_tokens: 10000}}, ears: [asr]}}
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("chatt", "Did you mean 'chat'?"),
        ("zzz", "There are: chat"),
        ("long", "--tokens 10000"),
        ("ears", "does not chat"),
    ],
)
def test_what_cannot_be_measured_is_said_at_once(name: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(TEXT)
    result = CliRunner().invoke(cli, ["bench", name, "--config", str(file)])
    assert (result.exit_code, says in result.output) == (2, True), result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["chat", "--config", "none.yaml"], "there is no file 'none.yaml'"),
        ([NOWHERE, "--prompt-tokens", "1,x"], "write whole numbers"),
        ([NOWHERE, "--prompt-tokens", "none"], "at least one length"),
        ([NOWHERE, "--concurrency", "0"], "write whole numbers"),
        ([NOWHERE, "--duration", "5"], "write a number and its unit"),
        ([NOWHERE, "--chart", "x.gif"], "ends in .png or .svg"),
        ([NOWHERE, "--chart", "no/where.png"], "there is no directory"),
        (["httpx://a", "--model", "m"], "unknown scheme"),
        ([], "Missing argument"),
    ],
)
def test_wrong_usage_exits_2(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(cli, ["bench", *arguments])
    assert (result.exit_code, says in result.output) == (2, True), result.output


def test_nobody_there_exits_1() -> None:
    result = CliRunner().invoke(cli, ["bench", NOWHERE])
    assert result.exit_code == 1
    assert "Nothing was measured: http://127.0.0.1:9 does not answer" in result.output
    result = CliRunner().invoke(cli, ["bench", NOWHERE, "--json"])
    assert (result.exit_code, json.loads(result.stdout)["ok"]) == (1, False)


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "bench", *arguments),
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def output(process: asyncio.subprocess.Process) -> tuple[str, str]:
    async with asyncio.timeout(6 * PATIENCE):
        out, err = await process.communicate()
    return out.decode(), err.decode()


async def test_a_table_a_chart_and_json(tmp_path: Path) -> None:
    sim = qwen(decode=400.0)  # slow enough that an answer does not come in one piece
    async with sim.serve() as url:
        routes = f"backends: {{a: {{url: '{url}', slots: 1}}}}\naliases: {{chat: [a]}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            port = gateway.url.rpartition(":")[2]
            file = tmp_path / "routes.yaml"
            file.write_text(f"server: {{listen: '127.0.0.1:{port}'}}\n{routes}")
            few = FEW.split()
            chart = tmp_path / "c.png"
            process = await start("chat", "--config", str(file), *few, "--chart", str(chart))
            out, err = await output(process)
            assert process.returncode == 0, out + err
            assert f"chat at {gateway.url}, answered by a" in out
            for row in (r"[\d,]+ +gateway +[\d.]+ m?s +[\d,.]+ +[\d,.]+ +1 *$", r"[\d,]+ +direct +[\d.]+ m?s"):
                assert len(re.findall(row, out, re.M)) == 2, out
            assert "the gateway adds at 300 tokens: first token " in out
            assert "through the gateway, 2 at a time: " in out
            assert "note: a has 1 slot: requests beyond that wait" in out
            assert max(len(line.rstrip()) for line in out.splitlines() if "─" in line) <= 80
            assert chart.read_bytes().startswith(b"\x89PNG")

            vector = tmp_path / "c.svg"
            process = await start("chat", "--config", str(file), *few, "--json", "--chart", str(vector), "--no-direct")
            out, err = await output(process)
            assert process.returncode == 0, err
            assert json.loads(out)["ok"] is True
            assert "<svg" in vector.read_text()


async def test_ctrl_c_shows_what_there_is() -> None:
    sim = qwen()
    async with sim.serve() as url:
        process = await start(url, "--tokens", "64", "--prompt-tokens", "300", "--repeats", "10000")
        await sim.wait_for(lambda: len(chats(sim)) >= 8, timeout=6 * PATIENCE)
        process.send_signal(signal.SIGINT)
        out, err = await output(process)
    assert process.returncode == 1, err
    assert "stopped before all was measured" in out
    assert re.search(r"url +[\d.]+ m?s", out)
    assert "Traceback" not in err
