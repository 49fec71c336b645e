"""The benchmark as it is run: its rows, its doubts about answers, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from bench import nginx, processes, routers, targets
from bench.load import Job, Run
from bench.ports import free_ports
from gateway.config.load import load_text
from tests.bench.byte_relay import relay
from tests.waiting import until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="CPU times are read from /proc")


async def start(*arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench", *arguments, cwd=processes.ROOT, stdout=pipe, stderr=pipe
    )


async def finish(process: asyncio.subprocess.Process) -> tuple[int, str]:
    out, error = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, (out + error).decode()


def row(text: str, title: str) -> str:
    (line,) = (line for line in text.splitlines() if line.startswith(title))
    return line


def number(cell: str) -> float:
    """A figure of the table: `1,487` has a comma from a thousand on."""
    return float(cell.replace(",", ""))


async def test_a_quick_run_prints_its_rows_and_writes_the_values(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    code, text = await finish(
        await start(
            "--quick", "--seconds", "0.2", "--targets", "direct", "--only", "small,latency", "--json", str(file)
        )
    )
    assert code == 0, text
    assert "1/s" in row(text, "small, answers per second")
    assert "0.00" in row(text, "added latency at 50/s, p50")
    figures = json.loads(file.read_text())["figures"]
    assert figures["small:rate"]["direct"]["median"] > 100
    assert figures["latency:p50"]["direct"]["median"] > 0


@pytest.mark.skipif(nginx.executable() is None, reason="nginx is not installed")
async def test_nginx_is_the_yardstick_where_it_is_installed() -> None:
    code, text = await finish(
        await start("--quick", "--seconds", "0.2", "--targets", "direct,nginx", "--only", "agentic,stream,paced,open")
    )
    assert code == 0, text
    assert "nginx is not in this run" not in text
    for title in ("agentic 112 KB", "stream of 3", "chunk paced", "memory, 100 open streams", "start to first answer"):
        assert number(row(text, title).split("n/a")[1].split()[0]) > 0


async def test_the_gateway_is_measured_with_its_features_on() -> None:
    code, text = await finish(
        await start("--quick", "--seconds", "0.2", "--targets", "gateway", "--only", "agentic,stream,paced,mending")
    )
    assert code == 0, text
    for title in ("agentic 112 KB", "stream of 3", "chunk paced, 20 x", "chunk paced, mending"):
        assert number(row(text, title).split("µs/")[1].split()[1]) > 0
    assert "nginx is not in this run" in text


ROUTER = """\
#!{python}
import asyncio, sys
from tests.bench.byte_relay import relay

async def main():
    words = sys.argv[1:]
    upstream = int(words[words.index("--worker-urls") + 1].rpartition(":")[2])
    async with relay(upstream, port=int(words[words.index("--port") + 1])):
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_router_is_measured_from_the_environment_that_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "bin" / "vllm-router"
    script.parent.mkdir()
    script.write_text(ROUTER.format(python=sys.executable))
    script.chmod(0o700)
    monkeypatch.setenv("ROUTERS", str(tmp_path))
    both = ("--targets", "gateway,vllm-router,sglang-router")
    code, text = await finish(await start("--quick", "--seconds", "0.2", *both, "--only", "small,stream"))
    assert code == 0, text
    assert "sglang-router is left out: ROUTERS holds no " in text
    for title in ("small 328 B", "stream of 3"):
        figures = row(text, title).split("µs/req")[1].split()
        assert number(figures[1]) > 0
        assert float(figures[2].removesuffix("x")) == pytest.approx(number(figures[0]) / number(figures[1]), rel=0.02)
        assert figures[-1] in ("ok", "MISS")


def test_a_router_that_cannot_be_installed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routers, "ROOT", tmp_path)
    pip = tmp_path / ".venv-routers" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    pip.write_text("#!/bin/sh\necho 'ERROR: no matching distribution' >&2\nexit 1\n")
    pip.chmod(0o700)
    with pytest.raises(routers.NotInstallable, match="no matching distribution"):
        routers.executable(routers.YARDSTICK, {})


def test_a_router_of_another_version_is_installed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routers, "ROOT", tmp_path)
    folder = tmp_path / ".venv-routers"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "vllm-router").touch()
    packages = folder / "lib" / "python3.11" / "site-packages"
    pip = folder / "bin" / "pip"
    pip.write_text(f"#!/bin/sh\nmkdir -p {packages}/vllm_router-{routers.YARDSTICK.version}.dist-info\n")
    pip.chmod(0o700)
    (packages / "vllm_router-0.1.0.dist-info").mkdir(parents=True)
    assert routers.executable(routers.YARDSTICK, {}) == folder / "bin" / "vllm-router"
    assert (packages / f"vllm_router-{routers.YARDSTICK.version}.dist-info").exists()
    pip.unlink()  # nothing is left to do
    assert routers.executable(routers.YARDSTICK, {}) == folder / "bin" / "vllm-router"


async def measured_through_a_relay(only: str, *, lose_event: bool = False, refuse: bool = False) -> tuple[int, str]:
    """The mock's port has to be known before, as with any proxy that somebody started by hand."""
    mock_port = free_ports(1)
    async with relay(mock_port, lose_event=lose_event, refuse=refuse) as port:
        target = ("--target", f"relay=http://127.0.0.1:{port}", "--mock-port", str(mock_port))
        return await finish(await start("--quick", "--seconds", "0.2", "--targets", "", "--only", only, *target))


async def test_another_proxy_is_measured_by_its_url() -> None:
    code, text = await measured_through_a_relay("small,stream,burst,paced")
    assert code == 0, text
    for title in ("small 328 B", "stream of 3", "chunk in bursts", "chunk paced"):
        assert number(row(text, title).split("µs/")[1].split()[1]) > 0


async def test_a_proxy_that_loses_an_event_is_not_called_fast() -> None:
    code, text = await measured_through_a_relay("stream", lose_event=True)
    assert code == 1
    assert "FAILED" in row(text, "stream of 3")
    assert "2 events instead of 3" in text


async def test_the_words_of_a_refusal_are_kept() -> None:
    async with relay(1, refuse=True) as port:
        job = Job("small", "127.0.0.1", port, "m", 0.1, 0.1, [])
        result = await Run(job).run()
    assert result.requests == 0
    assert any("status 503: busy" in error for error in result.errors)


async def test_sigterm_leaves_no_process_and_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = await start("--targets", "direct", "--only", "small", "--seconds", "60")
    await until(lambda: len(processes.process_tree([process.pid])) >= 3, within=20)  # bench, mock, load
    tree = processes.process_tree([process.pid])
    process.send_signal(signal.SIGTERM)
    code, _ = await finish(process)
    assert code == 128 + signal.SIGTERM
    assert processes.process_tree(tree) == []
    assert os.listdir(tmp_path) == []


async def test_an_unknown_scenario_is_told_with_the_known_ones() -> None:
    code, text = await finish(await start("--only", "smal"))
    assert code == 1
    assert "no scenario smal; there are open, small" in text


async def test_a_gateway_that_traces_is_a_row_of_its_own() -> None:
    code, text = await finish(await start("--quick", "--seconds", "0.2", "--targets", "gateway", "--only", "traced"))
    assert code == 0, text
    assert "µs/req" in row(text, "small, every request traced")


def test_only_the_gateway_of_that_row_traces(tmp_path: Path) -> None:
    for traced in (False, True):
        target = targets.gateway_target(tmp_path / str(traced), (1, 2), traced=traced)
        assert target.folder is not None
        snapshot = load_text((target.folder / "routes.yaml").read_text(), "routes.yaml", {}).snapshot
        assert (snapshot.traces is not None) is traced
        assert target.scenarios is not None
        assert ("traced" in target.scenarios, "small" in target.scenarios) == (traced, not traced)
