"""The core starts and serves without the apps, and without any single one: they are deleted from a copy of the
package."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from shutil import copytree, rmtree

import pytest

from simulator import SimVllm
from tests.demo_process import ROOT
from tests.gateway_process import GatewayProcess, gateway_process
from tests.raw_client import chat
from tests.waiting import until_said

APPS = sorted(path.parent.name for path in (ROOT / "gateway" / "apps").glob("*/__init__.py"))
# App -> a request to a path that it serves.
SERVED = {
    "batches": ("GET", "/v1/batches"),
    "control": ("GET", "/admin/operations"),
    "tokens": ("POST", "/tokenize"),
    "requests": ("GET", "/admin/requests"),
    "conversations": ("GET", "/v1/responses/resp_1"),
    "dialects": ("POST", "/v1/messages/count_tokens"),
    "page": ("GET", "/status"),
    "explaining": ("POST", "/admin/explain"),
    "probing": ("POST", "/admin/backends/one/probe"),
    "media": ("GET", "/v1/audio/voices"),
}
# Every module, those of commands too: a command imports its app when it is used.
IMPORTS = """
import importlib, pkgutil, gateway
for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
    if module.name != "gateway.__main__":
        importlib.import_module(module.name)
print(gateway.__path__[0])
"""


def copied(folder: Path, *deleted: str) -> Path:
    """A copy of the package in `folder`, from which Python imports it there, without these folders of it."""
    package = copytree(ROOT / "gateway", folder / "gateway")
    for name in deleted:
        rmtree(package / name)
    return package


async def ready(running: GatewayProcess) -> None:
    async def is_ready() -> bool:
        return (await running.client.get("/ready")).status_code == 200

    await until_said(is_ready, 30)


async def check_chat(running: GatewayProcess) -> None:
    reply = await running.client.post("/v1/chat/completions", json=chat("one"))
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == "one"


async def test_the_core_serves_without_any_app(tmp_path: Path) -> None:
    copied(tmp_path, "apps")
    async with SimVllm(slots=4).serve() as url, gateway_process(tmp_path, routes(url, tmp_path)) as running:
        await ready(running)
        await check_chat(running)
        client = running.client
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "one"
        for method, path in (*SERVED.values(), ("POST", "/v1/messages"), ("POST", "/v1/responses")):
            missing = await client.request(method, path, json=chat("one") if method == "POST" else None)
            assert missing.status_code == 404
            assert missing.json()["error"]["message"] == f"No such path: {path}"


@pytest.mark.parametrize("name", APPS)
async def test_the_gateway_serves_without_one_app(name: str, tmp_path: Path) -> None:
    copied(tmp_path, f"apps/{name}")
    async with SimVllm(slots=4).serve() as url, gateway_process(tmp_path, routes(url, tmp_path)) as running:
        await ready(running)
        await check_chat(running)
        for app, (method, path) in SERVED.items():
            status = (await running.client.request(method, path, json=chat("one"))).status_code
            kept = app == "conversations"  # a response that is not kept is a 404, too
            assert (status == 404) is (app == name or kept), path
        answered = await running.client.post("/v1/responses", json={"model": "one", "input": "hi"})
        assert answered.status_code == (404 if name == "dialects" else 200)


def test_no_module_of_the_core_imports_an_app(tmp_path: Path) -> None:
    package = copied(tmp_path, "apps")
    done = subprocess.run([sys.executable, "-c", IMPORTS], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(package)


def gateway_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_command_goes_with_its_app(tmp_path: Path) -> None:
    copied(tmp_path, "apps/bench")
    done = gateway_command(tmp_path, "bench", "http://127.0.0.1:9")
    assert done.returncode == 2
    assert "no command 'bench'" in done.stderr
    assert "Traceback" not in done.stderr
    assert " probe " in gateway_command(tmp_path, "--help").stdout


async def test_a_command_says_which_app_it_lacks(tmp_path: Path) -> None:
    copied(tmp_path, "apps/probing")
    async with SimVllm(slots=4).serve() as url:
        done = await asyncio.to_thread(gateway_command, tmp_path, "init", url.removeprefix("http://"), "--yes")
    assert done.returncode == 2
    assert "gateway.apps.probing" in done.stderr
    assert "Traceback" not in done.stderr


def test_explain_reads_chats_without_the_dialects(tmp_path: Path) -> None:
    copied(tmp_path, "apps/dialects")
    (tmp_path / "routes.yaml").write_text(routes("http://127.0.0.1:9", tmp_path))
    done = gateway_command(tmp_path, "explain", "one", "--tools")
    assert done.returncode == 0, done.stderr
    assert "tried in this order: one" in done.stdout


def routes(url: str, folder: Path) -> str:
    return f"server: {{data: '{folder}'}}\nbackends: {{one: {{url: '{url}', slots: 4}}}}\n"
