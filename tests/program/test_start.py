"""What a start costs: a gateway that only serves imports only what serving needs, and the rest when it is used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from gateway.api.app import build_api
from gateway.config.load import load_text
from gateway.http.app import App

# Each of these takes 5 to 250 ms to import, or 1 to 10 MB. Whoever needs one imports it where it is used.
UNNEEDED = (
    *(
        "fastapi",
        "starlette",
        "pydantic.v1",
        "opentelemetry",
        "redis",
        "rich",
        "pygments",
        "aiohttp",
        "litellm",
        "httpx",
        "httpcore",
        "anyio",
        "tenacity",
    ),
    *("matplotlib", "simulator", "gateway.api.app", "gateway.apps.cluster.membership"),
    *(
        "gateway.apps.dialects.anthropic",
        "gateway.apps.dialects.responses",
        "gateway.apps.control.memory",
        "gateway.apps.fleet.preflight",
    ),
    *("gateway.apps.importing", "gateway.apps.bench", "gateway.apps.judging", "gateway.apps.tracing.traces"),
)

# Serves until it has probed its backend, then asks itself what it was asked on the command line.
SERVE = """
import asyncio, gc, json, sys
from pathlib import Path
from gateway.cli import serve
from gateway.http.server import HttpServer
from tests.waiting import until

async def look(server):
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    answers = []
    for path in sys.argv[2:]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET {path} HTTP/1.1\\r\\nhost: 127.0.0.1\\r\\nx-api-key: k-12345678\\r\\nconnection: close"
        writer.write(f"{head}\\r\\n\\r\\n".encode())
        answers.append((await reader.read()).split()[1].decode())
        writer.close()
    imported = [name for name, module in sys.modules.items() if module is not None]
    print(json.dumps({"modules": imported, "answers": answers, "frozen": gc.get_freeze_count(), "gc": gc.isenabled()}))
    server.should_exit = True

startup = HttpServer.startup

async def started(server, sockets=None):
    server.looking = asyncio.create_task(look(server))
    await startup(server, sockets)

HttpServer.startup = started
serve.command(["--config", sys.argv[1], "--host", "127.0.0.1", "--port", "0"])
"""


def served(folder: Path, *paths: str) -> dict[str, object]:
    """A gateway in a process of its own, asked for these paths: what it had imported then."""
    config = folder / "routes.yaml"
    backend = "{url: 'http://127.0.0.1:9', slots: 4, tool_parser: hermes}"
    clients = "clients: {me: {key: k-12345678, aliases: ['*'], rpm: 100, admin: true}}"
    config.write_text(f"server: {{data: '{folder}'}}\nbackends: {{a: {backend}}}\naliases: {{chat: [a]}}\n{clients}\n")
    command = [sys.executable, "-c", SERVE, str(config), *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def unneeded(found: dict[str, object]) -> list[str]:
    modules = found["modules"]
    assert isinstance(modules, list)
    return [name for name in UNNEEDED if any(module == name or module.startswith(f"{name}.") for module in modules)]


def test_serving_imports_only_what_it_needs(tmp_path: Path) -> None:
    found = served(
        tmp_path, "/health", "/ready", "/version", "/metrics", "/v1/models", "/nowhere", "/v1/nowhere", "/docs"
    )
    assert found["answers"] == ["200", "503", "200", "200", "200", "404", "404", "404"]
    assert unneeded(found) == []


def test_every_path_of_fastapi_is_known_without_it() -> None:
    snapshot = load_text("backends: {a: {url: 'http://127.0.0.1:9', model: m}}", environ={}).snapshot
    app = App(snapshot)
    served = build_api(app.gateway).openapi()["paths"]
    assert len(served) > 20
    assert {path.removeprefix("/v1").strip("/").partition("/")[0] for path in served} == app.beginnings


def test_what_is_not_polled_is_served_by_fastapi(tmp_path: Path) -> None:
    found = served(tmp_path, "/", "/status", "/status/nowhere")
    assert found["answers"] == ["200", "200", "404"]
    assert "fastapi" in unneeded(found)


def test_garbage_is_collected_from_the_end_of_the_start_on(tmp_path: Path) -> None:
    found = served(tmp_path)
    assert found["gc"] is True
    assert isinstance(found["frozen"], int)
    assert found["frozen"] > 10_000
