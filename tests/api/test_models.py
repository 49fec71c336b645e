"""What clients and operators read beside inference: the models, the state, the metrics; and what is not there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway import __version__
from gateway.domain.endpoints import ENDPOINTS
from gateway.domain.health_state import State
from simulator import SimVllm
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway

HEALTH = "defaults: {health: {every: 50ms, fail_after: 2}}\n"
NOWHERE = "http://127.0.0.1:9"  # the discard port: nobody listens


@asynccontextmanager
async def one_backend(sim: SimVllm, more: str = "") -> AsyncIterator[RunningGateway]:
    async with sim.serve() as url, running_gateway(f"{HEALTH}backends: {{a: {{url: '{url}'}}}}\n{more}") as gateway:
        await gateway.until_ready("a")
        yield gateway


async def model(gateway: RunningGateway, name: str) -> dict[str, Any]:
    answer = await gateway.client.get(f"/v1/models/{name}")
    assert answer.status_code == 200, answer.text
    entry: dict[str, Any] = answer.json()
    return entry


def window(entry: dict[str, Any]) -> int | None:
    """The one window an entry tells: clients take the first key that looks like a length."""
    lengths = {key: value for key, value in entry.items() if isinstance(value, int) and key != "created"}
    assert set(lengths) in ({"max_model_len", "context_length"}, set())
    assert len(set(lengths.values())) <= 1
    return next(iter(lengths.values()), None)


# -- the models -------------------------------------------------------------------------------------------------------


async def test_models_are_the_aliases_in_the_files_order() -> None:
    async with one_backend(SimVllm("a", context=40960), "aliases: {writer: [a], coder: {use: [a], also: [gpt]}}") as g:
        listing = (await g.client.get("/v1/models")).json()
        assert listing["object"] == "list"
        assert [entry["id"] for entry in listing["data"]] == ["writer", "coder", "a"]
        for entry in listing["data"]:
            assert (entry["object"], entry["owned_by"]) == ("model", "spark-gateway")
            assert window(entry) == 40960
            assert entry == await model(g, entry["id"])
        assert (await g.client.get("/models")).json() == listing


async def test_further_names_are_described_too_but_not_listed() -> None:
    async with one_backend(SimVllm("a"), "aliases: {coder: {use: [a], also: [gpt, org/model, 'claude-*']}}") as gateway:
        for name in ("gpt", "org/model", "claude-anything"):
            entry = await model(gateway, name)
            assert (entry["id"], entry["x_gateway"]["alias"]) == (name, "coder")
        assert (await model(gateway, "org%2Fmodel"))["id"] == "org/model"
        unknown = await gateway.client.get("/v1/models/claude")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        assert unknown.json()["error"]["message"].startswith("The model 'claude' does not exist")


async def test_a_window_that_was_seen_is_told_also_while_the_backend_is_down() -> None:
    sim = SimVllm("a", context=40960)
    async with one_backend(sim) as gateway:
        await sim.kill()
        await gateway.until(lambda: gateway.state("a") is State.DOWN)
        assert window(await model(gateway, "a")) == 40960


async def test_a_declared_window_is_told_and_one_never_seen_is_not_made_up() -> None:
    routes = f"{HEALTH}backends: {{a: {{url: '{NOWHERE}', context: 65536}}, b: {{url: '{NOWHERE}'}}}}"
    async with running_gateway(routes) as gateway:
        assert window(await model(gateway, "a")) == 65536
        assert window(await model(gateway, "b")) is None


async def test_of_declared_and_served_the_smaller_window_is_told() -> None:
    sim = SimVllm("a", context=40960)
    async with sim.serve() as url:
        routes = f"backends: {{a: {{url: '{url}', context: 131072}}, b: {{url: '{url}', context: 8192}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            assert [window(await model(gateway, name)) for name in "ab"] == [40960, 8192]


async def test_an_alias_tells_what_its_first_step_can_always_take() -> None:
    backends = ", ".join(
        f"{name}: {{url: '{NOWHERE}', context: {context}}}"
        for name, context in (("l", 131072), ("s", 32768), ("t", 4096))
    )
    routes = (
        f"backends: {{{backends}, u: {{url: '{NOWHERE}'}}}}\naliases: {{one: [[l, s], t], two: [l, t], x: [[l, u]]}}"
    )
    async with running_gateway(routes) as gateway:
        assert [window(await model(gateway, name)) for name in ("one", "two", "x")] == [32768, 131072, None]


def keys_of(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*(keys_of(v) for v in value.values()))
    return set().union(*(keys_of(v) for v in value)) if isinstance(value, list) else set()


async def test_state_stands_only_under_x_gateway() -> None:
    """Some clients hide cards that say they are not available."""
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        await sim.kill()
        await gateway.until(lambda: gateway.state("a") is State.DOWN)
        entry = await model(gateway, "a")
        assert entry["x_gateway"]["states"] == {"a": "down"}
        assert entry["x_gateway"]["serving"] == []
        assert entry["status"] == {"value": "unloaded"}  # as llama-server's router says it
        del entry["x_gateway"], entry["status"]
        telling = ("avail", "state", "status", "health", "ready", "active", "down", "enabled")
        assert [key for key in keys_of(entry) if any(word in key for word in telling)] == []


async def test_models_never_wait_for_a_backend() -> None:
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        sim.fault("hang_health")
        sim.fault("slow", delay=60, path="/v1/models")
        async with asyncio.timeout(4):
            assert window(await model(gateway, "a")) == sim.context


# -- is it up ---------------------------------------------------------------------------------------------------------


async def test_version_and_health() -> None:
    async with running_gateway(f"backends: {{a: {{url: '{NOWHERE}'}}}}") as gateway:
        assert (await gateway.client.get("/version")).json() == {"version": __version__}
        health = await gateway.client.get("/health")
        assert (health.status_code, health.json()) == (200, {"status": "ok"})


async def test_ready_is_whether_something_can_serve() -> None:
    sim = SimVllm("a")
    async with one_backend(sim, "aliases: {writer: [a]}") as gateway:
        assert (await gateway.client.get("/ready")).status_code == 200
        await sim.kill()
        await gateway.until(lambda: gateway.state("a") is State.DOWN)
        answer = await gateway.client.get("/ready")
        assert (answer.status_code, answer.json()["aliases"]) == (503, [])
        assert (await gateway.client.get("/health")).status_code == 200, "the gateway itself is up"
        await sim.revive()
        await gateway.until_ready("a")
        assert (await gateway.client.get("/ready")).status_code == 200


async def test_one_alias_that_can_be_served_is_enough_to_be_ready() -> None:
    sim = SimVllm("a")
    async with sim.serve() as url:
        routes = f"{HEALTH}backends: {{a: {{url: '{url}'}}, b: {{url: '{NOWHERE}'}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            await gateway.until(lambda: gateway.state("b") is State.WARMING)
            answer = await gateway.client.get("/ready")
            assert (answer.status_code, answer.json()["aliases"]) == (200, ["a"])


async def test_a_stopping_gateway_is_not_ready_but_still_serves() -> None:
    async with one_backend(SimVllm("a")) as gateway:
        gateway.gateway.begin_stop()
        assert (await gateway.client.get("/ready")).status_code == 503
        assert (await gateway.client.get("/health")).status_code == 200
        assert (await gateway.client.post("/v1/chat/completions", json=chat())).status_code == 200


async def test_the_metrics_are_what_prometheus_reads() -> None:
    async with one_backend(SimVllm("a")) as gateway:
        for stream in (False, True):
            await gateway.client.post("/v1/chat/completions", json=chat(stream=stream))
        await gateway.client.post("/v1/chat/completions", json=chat("nobody"))
        answer = await gateway.client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        families = {family.name: family for family in text_string_to_metric_families(answer.text)}
        assert {
            *("gateway_requests", "gateway_attempts", "gateway_inflight", "gateway_backend_state", "gateway_tokens"),
            *("gateway_time_to_first_token_seconds", "gateway_inter_token_seconds", "gateway_request_seconds"),
        } <= set(families)
        assert all(family.documentation for family in families.values())
        states = {s.labels["state"]: s.value for s in families["gateway_backend_state"].samples}
        assert {state for state, value in states.items() if value} == {"ready"}


# -- what is not there ------------------------------------------------------------------------------------------------

PROBED_BY_CLIENTS = [
    *(("GET", "/api/v1/models"), ("GET", "/api/status"), ("GET", "/v1/props"), ("GET", "/props")),
    *(("GET", "/v1/audio/things"), ("POST", "/api/blobs/sha256-0")),
    *(("GET", "/openapi.json"), ("GET", "/docs"), ("POST", "/v1/load_lora_adapter"), ("POST", "/sleep")),
    *(("GET", "/nothing"), ("POST", "/v1/v1/chat/completions"), ("POST", "//v1/chat/completions"), ("DELETE", "/x")),
    *(("POST", "/v1/chat/completions/"), ("POST", "/v1/chat//completions"), ("POST", "/V1/chat/completions")),
    *(("POST", "/v1/chat%252Fcompletions"), ("GET", "/version/")),
]


async def test_unknown_paths_are_404_at_once_and_never_forwarded() -> None:
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        async with asyncio.timeout(5):
            for method, path in PROBED_BY_CLIENTS:
                request = gateway.client.build_request(method, gateway.url + path, json=chat("a"))
                request.url = request.url.copy_with(raw_path=path.encode())  # as it is, escapes too
                answer = await gateway.client.send(request)
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), (method, path)
        assert sim.requests == []
        assert set(sim.seen) <= {"/health", "/version", "/v1/models", "/metrics", "/is_sleeping"}  # our own probes


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", prefix + endpoint.path) for endpoint in ENDPOINTS for prefix in ("", "/v1")),
        *(("PUT", "/v1/chat/completions"), ("DELETE", "/v1/chat/completions"), ("POST", "/v1/models")),
        *(("POST", "/health"), ("POST", "/version"), ("DELETE", "/v1/models/a"), ("PUT", "/metrics")),
    ],
)
async def test_a_wrong_method_is_405(method: str, path: str) -> None:
    async with running_gateway(f"backends: {{a: {{url: '{NOWHERE}'}}}}") as gateway:
        answer = await gateway.client.request(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
        assert answer.headers["allow"] == ("POST" if method == "GET" or "/chat/" in path else "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/v1/models/a", "/version", "/metrics"])
async def test_head_is_get_without_the_body(path: str) -> None:
    """Monitors ask so."""
    async with running_gateway(f"backends: {{a: {{url: '{NOWHERE}'}}}}") as gateway:
        whole, head = await gateway.client.get(path), await gateway.client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
        assert int(head.headers["content-length"]) > 0
        assert (await gateway.client.get("/health")).status_code == 200, "the connection is in step"


@pytest.mark.parametrize(("path", "allow"), [("/v1/files", "GET, POST"), ("/admin/reload", "POST")])
async def test_the_allowed_methods_are_named(path: str, allow: str) -> None:
    async with running_gateway(f"backends: {{a: {{url: '{NOWHERE}'}}}}") as gateway:
        answer = await gateway.client.put(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
        assert {*answer.headers["allow"].split(", ")} == {*allow.split(", ")}


async def test_the_api_is_the_same_at_the_root_as_under_v1() -> None:
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        for endpoint in ENDPOINTS:
            for prefix in ("", "/v1"):
                empty = await gateway.client.post(prefix + endpoint.path, content=b"")
                assert empty.status_code == 400, "known, and it wants a body"
        for prefix in ("", "/v1"):
            assert (await gateway.client.post(prefix + "/chat/completions", json=chat())).status_code == 200
            assert (await gateway.client.post(prefix + "/chat/completions?beta=true", json=chat())).status_code == 200
            body = {"model": "a", "prompt": "once"}
            assert (await gateway.client.post(prefix + "/completions", json=body)).status_code == 200


async def test_an_escaped_letter_is_the_letter() -> None:
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        request = gateway.client.build_request("POST", gateway.url + "/x", json=chat())
        request.url = request.url.copy_with(raw_path=b"/v1/chat/completion%73")
        assert (await gateway.client.send(request)).status_code == 200


async def test_an_embedding_is_answered_with_and_without_v1() -> None:
    async with one_backend(SimVllm("a", pooling=True)) as gateway:
        for path in ("/v1/embeddings", "/embeddings"):
            answer = await gateway.client.post(path, json={"model": "a", "input": ["x", "y"]})
            assert (answer.status_code, len(answer.json()["data"])) == (200, 2)
