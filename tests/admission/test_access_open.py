"""A client that is named as callers without `clients` are: nothing of theirs is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.accounting.accounts import today
from simulator import SimVllm
from tests.support import running_gateway

ROUTES = """
server: {{keep_responses: 1h, data: {data}}}
{clients}
backends: {{a: {{url: '{url}', price: {{input: 1, output: 1}}}}}}
"""
CLIENTS = """clients:
  open: {key: key-open, budget: 1 USD/day}
  "client:open": {key: key-other}
  ops: {key: key-ops, admin: true}
"""


async def test_a_client_named_open_gets_nothing_of_callers_without_clients(tmp_path: Path) -> None:
    async with SimVllm("a", served=["m"]).serve() as url:
        async with running_gateway(ROUTES.format(data=tmp_path, clients="", url=url)) as gateway:
            await gateway.until_ready("a")
            kept = (await gateway.client.post("/v1/responses", json={"model": "a", "input": "hi"})).json()["id"]
            form: dict[str, Any] = {"files": {"file": ("in.jsonl", b"{}\n")}, "data": {"purpose": "batch"}}
            file = (await gateway.client.post("/v1/files", **form)).json()["id"]
            asked = {"input_file_id": file, "endpoint": "/v1/chat/completions"}
            batch = (await gateway.client.post("/v1/batches", json=asked)).json()["id"]
            await gateway.until(lambda: not gateway.gateway.services.active)
        paths = [f"/v1/responses/{kept}", f"/v1/files/{file}", f"/v1/files/{file}/content", f"/v1/batches/{batch}"]
        async with running_gateway(ROUTES.format(data=tmp_path, clients=CLIENTS, url=url)) as gateway:
            await gateway.until_ready("a")
            gateway.gateway.accounts.budgets.add("a", "open", 5.0, today())
            for key in ("key-open", "key-other"):
                headers = {"authorization": f"Bearer {key}"}
                for path in paths:
                    assert (await gateway.client.get(path, headers=headers)).status_code == 404, path
                for path in ("/v1/files", "/v1/batches"):
                    assert (await gateway.client.get(path, headers=headers)).json()["data"] == [], path
                told = (await gateway.client.get("/status", headers=headers)).json()
                assert told["batches"] == []
                usage = (await gateway.client.get("/status/usage", headers=headers)).json()
                assert usage["today"]["clients"] == []
                then = {"model": "a", "input": "on", "previous_response_id": kept}
                assert (await gateway.client.post("/v1/responses", json=then, headers=headers)).status_code == 404
                asking = {"model": "a", "input": "hi"}
                own = (await gateway.client.post("/v1/responses", json=asking, headers=headers)).json()
                for other in ("key-open", "key-other"):
                    seen = await gateway.client.get(f"/v1/responses/{own['id']}", headers={"x-api-key": other})
                    assert seen.status_code == (200 if key == other else 404)
                mine = (await gateway.client.post("/v1/files", **form, headers=headers)).json()["id"]
                begun = await gateway.client.post("/v1/batches", json={**asked, "input_file_id": mine}, headers=headers)
                assert begun.status_code == 200
                told = (await gateway.client.get("/status", headers=headers)).json()
                assert [one["id"] for one in told["batches"]] == [begun.json()["id"]]
            ops = (await gateway.client.get("/status", headers={"x-api-key": "key-ops"})).json()
            assert len(ops["batches"]) == 3
