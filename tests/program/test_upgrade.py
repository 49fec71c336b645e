"""The data of the last release is served by this one, and what this one writes is served by the last one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from simulator import SimVllm
from tests.apps.batches.filed import ended, line, results
from tests.apps.batches.test_batches import begin, sdk
from tests.demo_process import ROOT
from tests.gateway_process import GatewayProcess, gateway_process
from tests.raw_client import chat
from tests.waiting import until

ROUTES = """\
server: {{data: {data}, keep_responses: 1h, shutdown: 5s}}
backends:
  a: {{url: "{url}", slots: 4, health: {{canary: none}}}}
  b: {{url: "{url}", slots: 4, health: {{canary: none}}}}
aliases: {{chat: [a, b]}}
modes: {{daily: [a], other: [b]}}
"""


def git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, timeout=60)
    if done.returncode != 0:
        pytest.skip(f"the last release is read from git: {done.stderr.decode().strip()}")
    return done.stdout


@pytest.fixture(scope="module")
def last_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of the last release: its tag, else the last commit that had its version."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git here: the last release is read from its history")
    _, last = re.findall(r"^## \[(\d\S*)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)[:2]
    tagged = git("tag", "--list", f"v{last}").decode().split()
    if not tagged:
        changed = git("log", "--format=%H", f'-S__version__ = "{last}"', "--", "gateway/__init__.py").decode().split()
        if len(changed) < 2:
            pytest.skip(f"git has no history of {last} here")
        tagged = [f"{changed[0]}^"]
    packed = git("archive", tagged[0], "gateway", "simulator", "routes.yaml")
    folder = tmp_path_factory.mktemp("last")
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    assert f'"{last}"' in (folder / "gateway" / "__init__.py").read_text()
    return folder


def home(folder: Path, release: Path | None) -> Path:
    """A folder to start a gateway in: with the packages of a release, else those of this checkout."""
    folder.mkdir()
    for name in ("gateway", "simulator") if release is not None else ():
        (folder / name).symlink_to((release or ROOT) / name)
    return folder


async def asked_once(at: GatewayProcess) -> None:
    reply = await at.client.post("/v1/chat/completions", json=chat("chat"))
    assert reply.status_code == 200, reply.text


async def kept(at: GatewayProcess, name: str) -> Any:
    reply = await at.client.get(f"/v1/responses/{name}")
    assert reply.status_code == 200, reply.text
    return reply.json()["output"]


def used(folder: Path) -> int:
    command = [sys.executable, "-m", "gateway", "usage", "--by", "alias", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["usage"]
    return int(row["requests"])


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.timeout(300)
async def test_an_upgrade_goes_on_with_the_data_and_the_way_back_too(tmp_path: Path, last_release: Path) -> None:
    """Usage, files, batches, kept responses and the chosen mode, through the last release, this one, and the last one
    again."""
    batches: dict[str, str] = {}
    responses: dict[str, tuple[str, Any]] = {}
    sim = SimVllm("a", served=["m"], decode=200.0)
    async with sim.serve() as url:
        routes = ROUTES.format(data=tmp_path / "state", url=url)
        for n, (name, release) in enumerate([("old", last_release), ("new", None), ("old-again", last_release)], 1):
            folder = home(tmp_path / name, release)
            async with gateway_process(folder, routes) as at, sdk(at.url) as client:
                for before, batch in batches.items():
                    output, errors = await results(client, await ended(client, batch))
                    assert (list(output), errors) == ([before], {}), f"{name} reads the batch of {before}"
                for before, (response, said) in responses.items():
                    assert await kept(at, response) == said, f"{name} reads the response of {before}"
                status = (await at.client.get("/status")).json()
                assert status["mode"] == ("daily" if n == 1 else "other"), name
                if n == 1:
                    reply = await at.client.post("/admin/mode", json={"mode": "other", "force": True})
                    assert reply.status_code in (200, 202), reply.text
                await asked_once(at)
                done = await ended(client, (await begin(client, [line(name)])).id)
                assert done.status == "completed"
                batches[name] = done.id
                body = {"model": "chat", "input": f"{name}: 3 words please", "store": True}
                reply = await at.client.post("/v1/responses", json=body)
                assert reply.status_code == 200, reply.text
                responses[name] = (reply.json()["id"], await kept(at, reply.json()["id"]))
                os.kill(at.pid, signal.SIGTERM)
                await until(partial(is_gone, at.pid), 30)
            assert "cannot be used" not in (folder / "gateway.log").read_text()
            assert used(folder) >= 2 * n, f"{name} reads the ledger"
