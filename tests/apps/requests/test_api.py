"""`/admin/requests`: what happened to a request, what runs, and its end by an admin's word."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any, cast

import httpx
import pytest

from gateway.apps.requests.store import Search
from simulator import SimVllm
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway
from tests.two_backends import CHAT
from tests.waiting import PATIENCE

PATH = "/admin/requests"
KEYS = "clients: {ops: {key: ops-key, admin: true}, hermes: {key: hermes-key}, webui: {key: webui-key}}"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def found(gateway: RunningGateway, query: str = "", key: str = "") -> dict[str, Any]:
    answer = await gateway.client.get(PATH + query, headers=bearer(key) if key else {})
    assert answer.status_code == 200, answer.text
    fields: dict[str, Any] = answer.json()
    return fields


async def asked(gateway: RunningGateway, body: dict[str, Any], id: str) -> tuple[int, str]:
    """The status and the text of an answer that may be cut."""
    text = ""
    async with gateway.client.stream("POST", CHAT, json=body, headers={"x-request-id": id}) as answer:
        with contextlib.suppress(httpx.RemoteProtocolError):
            async for part in answer.aiter_text():
                text += part
    return answer.status_code, text


@pytest.mark.decided_both_ways
@pytest.mark.parametrize("stream", [False, True])
async def test_the_id_of_an_answer_leads_to_its_story(stream: bool) -> None:
    first, second = SimVllm("a"), SimVllm("b")
    async with first.serve() as one, second.serve() as two:
        routes = f"backends: {{a: {{url: '{one}'}}, b: {{url: '{two}'}}}}\naliases: {{chain: [a, b]}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            first.fault("status", status=500, count=1)
            answer = await gateway.client.post(CHAT, json=chat("chain", stream=stream))
            id = answer.headers["x-request-id"]
            await gateway.until(gateway.idle)
            told = await found(gateway, f"/{id}")
            (listed,) = (await found(gateway))["requests"]
    assert told["request"] == listed
    assert not told["running"]
    assert (listed["alias"], listed["backend"], listed["attempts"], listed["outcome"]) == ("chain", "b", 2, "200")
    assert [(one["backend"], one["kind"]) for one in listed["left"]] == [("a", "failed")]
    assert any("a was asked and left (failed)" in sentence for sentence in told["story"])
    assert listed["tokens_out"] > 0
    assert told["story"][-1] == "The client got the whole answer."


async def test_a_refused_request_tells_who_could_not_serve_it() -> None:
    async with SimVllm("a").serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        await gateway.client.post("/admin/backends/a/drain", headers={"content-type": "application/json"})
        answer = await gateway.client.post(CHAT, json=chat("a"), headers={"x-request-id": "mine"})
        await gateway.until(gateway.idle)
        told = await found(gateway, "/mine")
    assert told["request"]["outcome"] == answer.json()["error"]["code"]
    assert told["request"]["error"] == answer.json()["error"]["message"]
    assert [one["backend"] for one in told["request"]["skipped"]] == ["a"]


async def test_an_id_that_a_client_uses_again_is_told_of_its_last_request() -> None:
    async with SimVllm("a").serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        for model in ("a", "nobody"):
            await gateway.client.post(CHAT, json=chat(model), headers={"x-request-id": "again"})
        await gateway.until(gateway.idle)
        told = await found(gateway, "/again")
    assert (told["request"]["outcome"], told["others"]) == ("model_not_found", 1)


async def test_a_client_sees_its_own_requests_alone() -> None:
    async with SimVllm("a").serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}\n{KEYS}") as gateway:
        await gateway.until_ready("a")
        for client in ("hermes", "webui"):
            headers = bearer(f"{client}-key") | {"x-request-id": f"of-{client}"}
            await gateway.client.post(CHAT, json=chat("a"), headers=headers)
        await gateway.until(gateway.idle)
        everyone = await found(gateway, key="ops-key")
        own = await found(gateway, key="hermes-key")
        asked = await found(gateway, "?client=webui", key="hermes-key")
        others = await gateway.client.get(f"{PATH}/of-webui", headers=bearer("hermes-key"))
        mine = await gateway.client.get(f"{PATH}/of-hermes", headers=bearer("hermes-key"))
        nobody = await gateway.client.get(PATH)
        left = await gateway.client.delete(f"{PATH}/of-webui", headers=bearer("hermes-key"))
    assert {one["client"] for one in everyone["requests"]} == {"hermes", "webui"}
    assert [one["client"] for one in own["requests"]] == ["hermes"]
    assert asked["requests"] == []
    assert (others.status_code, mine.status_code, nobody.status_code, left.status_code) == (404, 200, 401, 404)


async def test_the_searches_of_one_client_take_turns_and_keep_nobody_else_waiting() -> None:
    async with running_gateway(f"backends: {{a: {{url: 'http://127.0.0.1:9'}}}}\n{KEYS}") as gateway:
        requests, going, ends = gateway.gateway.apps.requests, list[str](), threading.Event()
        find = requests.find

        def slow(search: Search) -> list[dict[str, Any]]:
            going.append(search.equal.get("client", "all"))
            assert ends.wait(PATIENCE)
            return cast("list[dict[str, Any]]", find(search))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(requests, "find", slow)
            asking = [asyncio.create_task(found(gateway, key="hermes-key")) for _ in range(40)]
            await gateway.until(lambda: going == ["hermes"] and len(requests.searches) == 1)
            asking.append(asyncio.create_task(found(gateway, key="webui-key")))
            await gateway.until(lambda: going == ["hermes", "webui"])
            ends.set()
            await asyncio.gather(*asking)
        assert len(requests.searches) == 0


async def test_only_an_admin_is_told_whose_bodies_are_captured() -> None:
    async with running_gateway(f"backends: {{a: {{url: 'http://127.0.0.1:9'}}}}\n{KEYS}") as gateway:
        gateway.gateway.apps.requests.capture.begin(60.0, "webui")
        assert (await found(gateway, key="ops-key"))["capture"]["client"] == "webui"
        assert (await found(gateway, key="hermes-key"))["capture"] is None


async def test_requests_are_searched_by_client_alias_outcome_and_id() -> None:
    async with SimVllm("a").serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        await gateway.client.post(CHAT, json=chat("a"), headers={"x-request-id": "good-1"})
        await gateway.client.post(CHAT, json=chat("nobody"), headers={"x-request-id": "bad-1"})
        await gateway.until(gateway.idle)

        async def ids(query: str) -> list[str]:
            return [one["id"] for one in (await found(gateway, query))["requests"]]

        assert await ids("?id=good") == ["good-1"]
        assert await ids("?alias=a") == ["good-1"]
        assert await ids("?outcome=model_not_found") == ["bad-1"]
        assert await ids("?outcome=failed") == []
        assert await ids("?backend=a&client=open&limit=1") == ["good-1"]
        wrong = await gateway.client.get(f"{PATH}?limit=100000")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_request_body")


@pytest.mark.decided_both_ways
@pytest.mark.parametrize("content", [False, True], ids=["before content", "in its content"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_running_request_is_seen_and_cancelled(stream: bool, content: bool) -> None:
    sim = SimVllm("a")
    async with sim.serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        sim.fault("hang_mid" if content else "hang_before", **({"after": 3} if content else {}))
        asking = asyncio.create_task(asked(gateway, chat("a", stream=stream), "slow"))
        await gateway.until(lambda: any(one.record.trying is not None for one in gateway.requests()))
        if content and stream:
            await gateway.until(lambda: bool(gateway.requests()[0].record.attempts[0].first_token))
        (running,) = (await found(gateway))["running"]
        told = await found(gateway, "/slow")
        ended = await gateway.client.delete(f"{PATH}/slow")
        status, text = await asking
        await gateway.until(gateway.idle)
        after = await found(gateway, "/slow")
        again = await gateway.client.delete(f"{PATH}/slow")
        health = gateway.gateway.fleet.states["a"].health.state.value
    assert (running["id"], running["alias"], running["backend"]) == ("slow", "a", "a")
    assert told["running"]
    assert ended.json() == {"id": "slow", "cancelled": 1}
    assert "request_cancelled" in text
    assert "[DONE]" not in text
    assert status == (200 if content and stream else 499)
    assert after["request"]["outcome"] == "request_cancelled"
    assert again.status_code == 404
    assert health == "ready"


async def test_a_waiting_request_is_cancelled() -> None:
    sim = SimVllm("a")
    async with sim.serve() as url, running_gateway(f"backends: {{a: {{url: '{url}', slots: 1}}}}") as gateway:
        await gateway.until_ready("a")
        sim.fault("hang_before")
        first = asyncio.create_task(gateway.client.post(CHAT, json=chat("a"), headers={"x-request-id": "first"}))
        await gateway.until(lambda: len(gateway.requests()) == 1 and bool(gateway.requests()[0].record.attempts))
        second = asyncio.create_task(gateway.client.post(CHAT, json=chat("a"), headers={"x-request-id": "second"}))
        await gateway.until(lambda: len(gateway.requests()) == 2)
        phases = {one["id"]: one["phase"] for one in (await found(gateway))["running"]}
        for id in ("second", "first"):
            assert (await gateway.client.delete(f"{PATH}/{id}")).json()["cancelled"] == 1
        assert {(await one).status_code for one in (first, second)} == {499}
    assert phases["second"] == "waiting for a slot"


async def test_nothing_is_kept_where_nothing_is_wanted() -> None:
    async with SimVllm("a").serve() as url:
        routes = f"server: {{requests: {{keep: 0}}}}\nbackends: {{a: {{url: '{url}'}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            await gateway.client.post(CHAT, json=chat("a"), headers={"x-request-id": "mine"})
            await gateway.until(gateway.idle)
            listed = await found(gateway)
            one = await gateway.client.get(f"{PATH}/mine")
    assert (listed["requests"], listed["kept"]["keep"]) == ([], 0)
    assert "none are kept" in one.json()["error"]["message"]
