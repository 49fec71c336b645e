"""Keys: who may ask, for what, and that a key is seen by nobody else."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import httpx
import pytest

from simulator import SimVllm
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway

HERMES, SCORER, OPS = "hermes-key-1", "scorer-key-2", "ops-key-3"
CLIENTS = f"""
clients:
  hermes: {{key: "${{HERMES_KEY}}", aliases: [writer, "spark-*"]}}
  scorer: {{key: "sha256:{sha256(SCORER.encode()).hexdigest()}", aliases: [scores]}}
  ops: {{key: "{OPS}", admin: true}}
"""
ALIASES = "aliases: {writer: [a], spark-one: [a], spark-two: {use: [a], also: [ds4, other]}, scores: [a]}\n"
POSTS = ("/v1/chat/completions", "/chat/completions", "/v1/completions", "/v1/embeddings", "/embeddings")


@asynccontextmanager
async def guarded(sim: SimVllm, clients: str = CLIENTS) -> AsyncIterator[RunningGateway]:
    async with sim.serve() as url:
        routes = f"backends: {{a: {{url: '{url}', api_key: backend-key-4}}}}\n{ALIASES}{clients}"
        async with running_gateway(routes, {"HERMES_KEY": HERMES}) as gateway:
            await gateway.until_ready("a")
            yield gateway


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def ask(gateway: RunningGateway, model: str, headers: dict[str, str], **body: Any) -> httpx.Response:
    return await gateway.client.post("/v1/chat/completions", json=chat(model, **body), headers=headers)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.parametrize("key", [HERMES, SCORER, OPS])
async def test_a_key_is_taken_as_bearer_and_as_x_api_key(key: str) -> None:
    """However it is written in the file: from a variable, plain, as its SHA-256."""
    model = "scores" if key == SCORER else "writer"
    async with guarded(SimVllm("a", api_key="backend-key-4")) as gateway:
        for headers in (
            bearer(key),
            {"x-api-key": key},
            {"authorization": f"bearer   {key}"},
            {"X-API-Key": key, "authorization": "Basic abc"},
        ):
            assert (await ask(gateway, model, headers)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        {"x-api-key": "wrong"},
        {"authorization": "Bearer"},
        bearer(HERMES + "x"),
        bearer(HERMES[:-1]),
        bearer(sha256(SCORER.encode()).hexdigest()),
        bearer("sha256:" + sha256(SCORER.encode()).hexdigest()),
        {"authorization": HERMES},
        {**bearer("wrong"), "x-api-key": HERMES},
    ],
    ids=lambda headers: ",".join(headers.values()) or "none",
)
async def test_without_a_right_key_nothing_is_served(headers: dict[str, str]) -> None:
    sim = SimVllm("a", api_key="backend-key-4")
    async with guarded(sim) as gateway:
        for path in POSTS:
            answer = await gateway.client.post(path, json=chat("writer"), headers=headers)
            assert code(answer) == (401, "invalid_api_key")
        for path in ("/v1/models", "/v1/models/writer", "/models"):
            assert code(await gateway.client.get(path, headers=headers)) == (401, "invalid_api_key")
        assert sim.requests == []


async def test_paths_that_tell_of_nobody_need_no_key() -> None:
    """What load balancers and supervisors ask; and the page, which holds no data."""
    async with guarded(SimVllm("a", api_key="backend-key-4")) as gateway:
        for path in ("/health", "/ready", "/version", "/"):
            answer = await gateway.client.get(path)
            assert answer.status_code == 200
            assert not [name for name in ("writer", "spark-one", "scores", "hermes") if name in answer.text], path
        for path in ("/docs", "/redoc", "/openapi.json", "/v1", "/.env", "/admin", "/debug"):
            assert (await gateway.client.get(path)).status_code == 404


async def test_a_client_may_use_what_its_patterns_name_and_nothing_else() -> None:
    sim = SimVllm("a", api_key="backend-key-4")
    async with guarded(sim) as gateway:
        for model in ("writer", "spark-one", "spark-two", "ds4"):
            assert (await ask(gateway, model, bearer(HERMES))).status_code == 200, model
        served = len(sim.requests)
        assert code(await ask(gateway, "scores", bearer(HERMES))) == (403, "model_not_allowed")
        for model in ("writer", "spark-one", "ds4"):
            assert code(await ask(gateway, model, bearer(SCORER))) == (403, "model_not_allowed")
        assert len(sim.requests) == served
        assert (await ask(gateway, "scores", bearer(OPS))).status_code == 200, "no patterns: everything"


async def test_a_name_that_does_not_exist_suggests_only_what_the_client_may_use() -> None:
    async with guarded(SimVllm("a", api_key="backend-key-4")) as gateway:
        answer = await ask(gateway, "scorez", bearer(HERMES))
        assert code(answer) == (404, "model_not_found")
        assert "'scores'" not in answer.text
        assert "'scores'" in (await ask(gateway, "scorez", bearer(OPS))).text


async def test_the_list_of_models_is_the_clients_own() -> None:
    async with guarded(SimVllm("a", api_key="backend-key-4")) as gateway:
        for key, expected in (
            (HERMES, ["writer", "spark-one", "spark-two"]),
            (SCORER, ["scores"]),
            (OPS, ["writer", "spark-one", "spark-two", "scores"]),
        ):
            listed = (await gateway.client.get("/v1/models", headers=bearer(key))).json()["data"]
            names = [entry["id"] for entry in listed]
            assert [name for name in names if name not in ("a", "ds4", "other")] == expected
        one = await gateway.client.get("/v1/models/scores", headers=bearer(HERMES))
        assert code(one) == (403, "model_not_allowed")


async def test_a_repeated_model_key_does_not_pass_the_check() -> None:
    """What is checked is what is sent."""
    sim = SimVllm("a", api_key="backend-key-4")
    async with guarded(sim) as gateway:
        body = b'{"model": "scores", "messages": [{"role": "user", "content": "x"}], "model": "writer"}'
        answer = await gateway.client.post("/v1/chat/completions", content=body, headers=bearer(SCORER))
        assert code(answer) == (403, "model_not_allowed")
        assert sim.requests == []


async def test_keys_are_seen_by_no_backend_and_stand_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    sim = SimVllm("a", api_key="backend-key-4")
    secrets = (HERMES, SCORER, OPS, "backend-key-4", "wrong-key-5", "cookie-6")
    async with guarded(sim) as gateway:
        sim.fault("status", status=500, count=1)
        answers = [
            await ask(gateway, model, {**headers, "cookie": "session=cookie-6"}, stream=stream)
            for model in ("writer", "scores", "nothing")
            for headers in (bearer(HERMES), {"x-api-key": OPS}, bearer("wrong-key-5"))
            for stream in (False, True)
        ]
        public = [a.text + str(a.headers) for a in answers]
        for path in ("/metrics", "/v1/models", "/ready"):
            public.append((await gateway.client.get(path, headers=bearer(OPS))).text)
        assert not [(secret, text) for secret in secrets for text in public if secret in text]
    assert {record.headers["authorization"] for record in sim.requests} == {"Bearer backend-key-4"}
    sent = [f"{record.headers} {record.body!r}" for record in sim.requests]
    assert sent
    assert not [text for text in sent for secret in (HERMES, SCORER, OPS, "wrong-key-5", "cookie-6") if secret in text]
    ours = [r.getMessage() for r in caplog.records if r.name.startswith(("gateway", "uvicorn"))]
    assert ours
    assert not [(secret, line) for secret in secrets for line in ours if secret in line]


async def test_without_clients_everybody_is_let_in_and_keys_are_ignored() -> None:
    async with guarded(SimVllm("a", api_key="backend-key-4"), clients="") as gateway:
        for headers in ({}, bearer("anything"), {"x-api-key": "anything"}):
            assert (await ask(gateway, "scores", headers)).status_code == 200
