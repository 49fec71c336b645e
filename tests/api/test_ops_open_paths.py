"""`/metrics`, `/ready` and what else is asked without a key: what they tell to whom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from simulator import SimVllm
from tests.one_backend import FAST
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway

OPS, HERMES = "ops-key-1", "hermes-key-2"
CLIENTS = f"clients: {{ops: {{key: '{OPS}', admin: true}}, hermes: {{key: '{HERMES}', aliases: [writer]}}}}\n"
NAMES = ("writer", "secret-project", "hermes", "ops", "backend-a")


@asynccontextmanager
async def gateway_of(more: str) -> AsyncIterator[RunningGateway]:
    aliases = "aliases: {writer: [backend-a], secret-project: [backend-a]}\n"
    async with (
        SimVllm("a").serve() as url,
        running_gateway(f"{more}backends: {{backend-a: {{url: '{url}'}}}}\n{aliases}") as gateway,
    ):
        await gateway.until_ready("backend-a")
        yield gateway


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


async def codes(gateway: RunningGateway, path: str, *keys: str | None) -> list[int]:
    return [(await gateway.client.get(path, headers=bearer(key))).status_code for key in keys]


# -- /metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", [200, 200, 200, 200]),
        ("server: {metrics: open}\n", [200, 200, 200, 200]),
        (CLIENTS, [401, 401, 403, 200]),
        (CLIENTS + "server: {metrics: key}\n", [401, 401, 403, 200]),
        (CLIENTS + "server: {metrics: open}\n", [200, 200, 200, 200]),
    ],
)
async def test_metrics_are_for_admins_where_there_are_clients_unless_it_says_open(
    more: str, expected: list[int]
) -> None:
    async with gateway_of(more) as gateway:
        for path in ("/metrics", "/metrics?name[]=x"):
            assert await codes(gateway, path, None, "wrong", HERMES, OPS) == expected


async def test_a_key_without_clients_means_this_machine_alone() -> None:
    async with gateway_of("server: {metrics: key}\n") as gateway:
        assert await codes(gateway, "/metrics", None) == [200]
        answer = await gateway.client.get("/metrics", headers={"x-forwarded-for": "203.0.113.9"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_only")
        assert "/metrics answers only this machine" in answer.json()["error"]["message"]
        transport = httpx.ASGITransport(gateway.app, client=("192.168.1.30", 5555))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:4000") as other:
            assert (await other.get("/metrics")).status_code == 403


async def test_a_refusal_tells_no_number_and_no_name() -> None:
    async with gateway_of(CLIENTS) as gateway:
        await gateway.client.post("/v1/chat/completions", json=chat("secret-project"), headers=bearer(OPS))
        for key in (None, "wrong"):
            text = (await gateway.client.get("/metrics", headers=bearer(key))).text
            assert not [name for name in (*NAMES, "gateway_") if name in text]
        assert 'client="ops"' in (await gateway.client.get("/metrics", headers={"x-api-key": OPS})).text


# -- /ready -----------------------------------------------------------------------------------------------------------


async def test_ready_names_aliases_only_to_who_may_use_them() -> None:
    async with gateway_of(CLIENTS) as gateway:
        for key, names in ((HERMES, {"writer"}), (OPS, {"writer", "secret-project", "backend-a"})):
            told = (await gateway.client.get("/ready", headers=bearer(key))).json()
            assert (told["status"], set(told["aliases"])) == ("ready", names)
        for stranger in (None, "wrong"):
            answer = await gateway.client.get("/ready", headers=bearer(stranger))
            assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
    async with gateway_of("") as gateway:
        assert set((await gateway.client.get("/ready")).json()["aliases"]) >= {"writer", "secret-project"}


async def test_ready_names_the_aliases_that_nobody_serves_now() -> None:
    modes = "modes: {daily: [a], large: [b]}\naliases: {writer: [a], ds4: [b], both: [a, b]}"
    async with SimVllm("a").serve() as first, SimVllm("b").serve() as second:
        routes = f"{FAST}backends: {{a: {{url: '{first}'}}, b: {{url: '{second}'}}}}\n{modes}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            assert (await gateway.client.get("/ready")).json()["unserved"] == ["ds4", "b"]
            await gateway.gateway.put_mode_in_force("large")
            await gateway.until_ready("b")
            answer = await gateway.client.get("/ready")
            assert (answer.status_code, answer.json()["unserved"]) == (200, ["writer", "a"])
    async with gateway_of(CLIENTS) as gateway:
        assert "unserved" not in (await gateway.client.get("/ready")).json()
        assert "unserved" in (await gateway.client.get("/ready", headers=bearer(HERMES))).json()


async def test_what_needs_no_key_tells_no_name() -> None:
    async with gateway_of(CLIENTS) as gateway:
        for path in (
            "/health",
            "/ready",
            "/version",
            "/",
            "/web/app.js",
            "/nothing",
            "/openapi.json",
            "/docs",
            "/status",
        ):
            answer = await gateway.client.get(path)
            assert not [name for name in NAMES if name in answer.text], path


async def test_an_error_about_one_name_tells_no_other() -> None:
    async with gateway_of(CLIENTS) as gateway:
        for model in ("secret-projec", "secret", "writr", "nothing", "secret-project"):
            for key in (None, "wrong", HERMES):
                answer = await gateway.client.post("/v1/chat/completions", json=chat(model), headers=bearer(key))
                said = answer.json()["error"]["message"].replace(f"'{model}'", "")
                assert answer.status_code in (401, 403, 404)
                assert "secret-project" not in said
                assert OPS not in said
                assert "'ops'" not in said
