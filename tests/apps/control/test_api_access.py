"""Who may switch, start and stop, and what others see of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.apps.control.machine import ended, gateway_of, machine

KEYS = "clients: {ops: {key: ops-key-1, admin: true}, agent: {key: agent-key-2}}\n"
OPS = {"authorization": "Bearer ops-key-1"}
AGENT = {"authorization": "Bearer agent-key-2"}
PATHS = [
    ("POST", "/admin/mode"),
    ("POST", "/admin/backends/a/start"),
    ("POST", "/admin/backends/a/stop"),
    ("GET", "/admin/operations"),
    ("GET", "/admin/operations/none"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_only_an_admin_may(tmp_path: Path, method: str, path: str) -> None:
    async with machine(tmp_path, "a") as there, gateway_of(there, "{daily: [a]}", KEYS) as gateway:
        body = {"mode": "daily", "dry_run": True} if method == "POST" else None
        found = []
        for headers in ({}, AGENT, {**OPS, "origin": "https://evil.example"}, OPS):
            found.append((await gateway.client.request(method, path, json=body, headers=headers)).status_code)
        assert found == [401, 403, 403, 404 if path.endswith("none") else 200]
        assert there.orders == []


async def test_a_page_cannot_send_a_form(tmp_path: Path) -> None:
    async with machine(tmp_path, "a") as there, gateway_of(there, "{daily: [a]}") as gateway:
        plain = {"content-type": "text/plain"}
        assert (await gateway.client.post("/admin/mode", content='{"mode": "daily"}', headers=plain)).status_code == 415
        assert there.orders == []


async def test_what_a_command_wrote_is_for_admins(tmp_path: Path) -> None:
    async with machine(tmp_path, "a") as there:
        there.lines["stop a"] = "sh -c 'echo a-secret; exit 1'"
        there.lines["stop a"] = there.lines["stop a"].replace("'", "''")
        async with gateway_of(there, "{daily: [a]}", KEYS) as gateway:
            begun = await gateway.client.post("/admin/backends/a/stop", headers=OPS)
            known = gateway.gateway.apps.control.operations.get(begun.json()["id"])
            await gateway.until(lambda: known.ended is not None)
            shown = await gateway.client.get(f"/admin/operations/{known.id}", headers=OPS)
            assert shown.json()["steps"][1]["output"] == "backends.a.stop\na-secret\nexit code 1"
            status = (await gateway.client.get("/status", headers=AGENT)).text
            assert "stop a: stop a" in status
            assert "a-secret" not in status
            of_all = (await gateway.client.get("/status", headers=AGENT)).json()["operation"]
            assert [(step["what"], step["state"], step["output"]) for step in of_all["steps"]] == [
                ("drain", "done", ""), ("stop", "failed", "")
            ]  # fmt: skip
            assert (of_all["error"], of_all["notes"]) == (None, [])
            assert (await gateway.client.get("/status", headers=OPS)).json()["operation"] == shown.json()


async def test_a_canary_decides_when_it_serves(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", away="c") as there:
        health = ", health: {canary: 1h}"
        async with gateway_of(there, "{daily: [a], ds4: [c]}", c=health) as gateway:
            sim = there.sims["c"]
            begun = (await gateway.client.post("/admin/mode", json={"mode": "ds4"})).json()
            done = await ended(gateway, begun)
            assert done["state"] == "done"
            wait = next(step for step in done["steps"] if step["what"] == "wait")
            assert "canary" in wait["output"]
            assert any(one.headers.get("x-request-id", "").startswith("probe-") for one in sim.requests)
            await gateway.until(lambda: sim.inflight == 0 and gateway.idle())
