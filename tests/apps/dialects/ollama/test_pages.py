"""What Ollama's API tells of models, and what it refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from simulator import SimVllm
from tests.support import RunningGateway, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

MINE = {"authorization": "Bearer key-mine"}
ROUTES = """
backends:
  qwen: {{url: "{url}", model: Qwen/Qwen3.6-35B, tool_parser: hermes, vision: true, context: 32768}}
  plain: {{url: "{url}", model: plain, tool_parser: none}}
  bert: {{url: "{url}", model: bert, serves: [embeddings]}}
  away: {{url: "http://127.0.0.1:1", model: x, run: on_demand}}
aliases:
  coder: [qwen]
  "tagged:8b": [plain]
  vectors: {{use: [bert], listed: true}}
  gone: [away]
  theirs: [qwen]
clients:
  mine: {{key: key-mine, aliases: [coder, "tagged:8b", vectors, gone]}}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[RunningGateway]:
    sim = SimVllm(name="a", served=["Qwen/Qwen3.6-35B", "plain", "bert"], context=32768)
    async with sim.serve(port=0) as url, running_gateway(ROUTES.format(url=url)) as running:
        await running.until_ready("qwen", "plain", "bert")
        await running.until(lambda: running.state("away").value == "parked")
        yield running


async def models(gateway: RunningGateway, page: str) -> dict[str, dict[str, Any]]:
    reply = await gateway.client.get(f"/api/{page}", headers=MINE)
    return {one["model"]: one for one in reply.json()["models"]}


async def test_the_version_is_new_enough(gateway: RunningGateway) -> None:
    version = (await gateway.client.get("/api/version")).json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)


async def test_the_clients_aliases_are_models_with_tags(gateway: RunningGateway) -> None:
    found = await models(gateway, "tags")
    assert list(found) == ["coder:latest", "tagged:8b", "vectors:latest", "gone:latest"]
    assert {name: one["capabilities"] for name, one in found.items()} == {
        "coder:latest": ["completion", "tools", "vision", "thinking"],
        "tagged:8b": ["completion"],
        "vectors:latest": ["embedding"],
        "gone:latest": ["completion", "tools"],
    }
    assert all(len(one["digest"]) == 64 and one["name"] == name for name, one in found.items())


async def test_models_that_run_are_those_that_are_loaded(gateway: RunningGateway) -> None:
    assert list(await models(gateway, "ps")) == ["coder:latest", "tagged:8b", "vectors:latest"]


@pytest.mark.parametrize("field", ["model", "name"])
async def test_one_model_tells_its_window(gateway: RunningGateway, field: str) -> None:
    reply = await gateway.client.post("/api/show", json={field: "coder:latest"}, headers=MINE)
    info = reply.json()["model_info"]
    assert info[info["general.architecture"] + ".context_length"] == 32768
    assert "tools" in reply.json()["capabilities"]


@pytest.mark.parametrize(("model", "status"), [("theirs", 403), ("nobody", 404), (None, 400)])
async def test_a_model_that_is_not_the_clients(gateway: RunningGateway, model: str | None, status: int) -> None:
    reply = await gateway.client.post("/api/show", json={"model": model}, headers=MINE)
    assert (reply.status_code, type(reply.json()["error"])) == (status, str)


async def test_without_a_key_nothing_is_told(gateway: RunningGateway) -> None:
    reply = await gateway.client.get("/api/tags")
    assert (reply.status_code, reply.json()["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "pull"), ("POST", "push"), ("POST", "create"), ("POST", "copy"), ("DELETE", "delete")]
)
async def test_models_are_not_changed_here(gateway: RunningGateway, method: str, path: str) -> None:
    reply = await gateway.client.request(method, f"/api/{path}", json={"model": "coder"}, headers=MINE)
    assert reply.status_code == 400
    assert "routes.yaml" in reply.json()["error"]
