"""Responses that are kept (`server.keep_responses`): going on from one, reading one, deleting one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tests import native_responses as native
from tests.apps.dialects.responses.test_exchange import PATH, TOOL, told
from tests.apps.dialects.stage import HELLO, LAST, LEAK, ROLE, Stage, answers, says
from tests.scripted import PATIENCE, RawReply, json_answer, raw_post, scripted
from tests.support import running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUTES = """
server: {{keep_responses: 1h}}
backends:
  s: {{url: "{s}", tool_parser: hermes}}
  far: {{url: "{t}", engine: openai, cloud: true, model: m}}
aliases:
  chat: [s]
  far: [far]
clients:
  one: {{key: key-one}}
  two: {{key: key-two}}
  inside: {{key: key-inside, local_only: true}}
"""


@pytest.fixture
def stage(stage: Stage) -> Stage:
    stage.s.play(answers({"content": "hello"}))
    stage.t.play(answers({"content": "hello"}))
    stage.s.responds = False
    return stage


async def ask(stage: Stage, key: str = "key-one", *headers: str, model: str = "chat", **more: Any) -> RawReply:
    body = {"model": model, "input": "hi", **more}
    return await raw_post(stage.gateway.url, body, PATH, [f"authorization: Bearer {key}", *headers])


def client(stage: Stage, key: str = "key-one") -> AsyncOpenAI:
    http = DefaultAsyncHttpxClient(trust_env=False)
    return AsyncOpenAI(base_url=f"{stage.gateway.url}/v1", api_key=key, max_retries=0, http_client=http)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_sdk_goes_on_from_a_response(stage: Stage, stream: bool) -> None:
    async with client(stage) as sdk:
        stage.s.play(says(ROLE, HELLO, *LAST) if stream else answers({"content": "hello"}))
        made: Any = await sdk.responses.create(model="chat", input="one", instructions="Be kind.", stream=stream)
        if stream:
            made = [event async for event in made][-1].response
        assert made.store
        stage.s.play(answers({"content": "again"}))
        second = await sdk.responses.create(model="chat", input="two", previous_response_id=made.id)
        third = await sdk.responses.create(model="chat", input="three", previous_response_id=second.id)
        assert (second.previous_response_id, third.previous_response_id) == (made.id, second.id)
        said = [(message["role"], message["content"]) for message in stage.s.turns[1].json["messages"]]
        assert said == [
            ("user", "one"),
            ("assistant", "hello"),
            ("user", "two"),
            ("assistant", "again"),
            ("user", "three"),
        ]
        again = await sdk.responses.retrieve(second.id)
        assert (again.output_text, again.id) == ("again", second.id)
        await sdk.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(second.id)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.create(model="chat", input="four", previous_response_id=third.id)


@pytest.mark.parametrize("own", [False, True], ids=["chat", "own"])
async def test_calls_and_their_results_are_kept(stage: Stage, own: bool) -> None:
    stage.s.responds = own
    sent = native.whole(native.call({"city": "Oslo"}), native.message(LEAK))
    stage.s.play(lambda turn: turn.send(json_answer(sent)) if own else answers({"content": LEAK})(turn))
    made = (await ask(stage, tools=[TOOL])).json
    result = {"type": "function_call_output", "call_id": made["output"][0]["call_id"], "output": "rain"}
    stage.s.responds = False
    stage.s.play(answers({"content": "It rains."}))
    await ask(stage, tools=[TOOL], previous_response_id=made["id"], input=[result])
    messages = stage.s.turns[-1].json["messages"]
    assert [message["role"] for message in messages][:3] == ["user", "assistant", "tool"]
    assert messages[1]["tool_calls"][0]["function"]["name"] == "get_weather"


async def test_a_response_of_a_server_of_its_own_is_kept_as_the_client_got_it(stage: Stage) -> None:
    stage.s.responds = True
    stage.s.play(says(*native.stream(native.thoughts("hm"), native.message("hello"))))
    made = told(await ask(stage, stream=True))[-1]["response"]
    assert (made["store"], stage.s.turns[0].json["store"]) == (True, False)
    stage.s.play(lambda turn: turn.send(json_answer(native.whole(native.message("again")))))
    second = (await ask(stage, previous_response_id=made["id"])).json
    sent = stage.s.turns[0].json
    assert "previous_response_id" not in sent
    assert [item.get("role", item["type"]) for item in sent["input"]] == ["user", "reasoning", "assistant", "user"]
    assert second["previous_response_id"] == made["id"]


async def test_the_response_of_another_key_is_as_unknown_as_none(stage: Stage) -> None:
    made = (await ask(stage)).json
    for name, key in ((made["id"], "key-two"), ("resp_none", "key-one"), ("x" * 5000, "key-one")):
        reply = await ask(stage, key, previous_response_id=name)
        assert (reply.status, reply.json["error"]["code"]) == (404, "not_found")
        assert reply.json["error"]["param"] == "previous_response_id"
    for key, status in (("key-two", 404), ("key-one", 200), ("nobody", 401)):
        found = await stage.gateway.client.get(f"{PATH}/{made['id']}", headers={"authorization": f"Bearer {key}"})
        assert found.status_code == status
    gone = await stage.gateway.client.delete(f"{PATH}/{made['id']}", headers={"authorization": "Bearer key-two"})
    assert gone.status_code == 404
    assert (await ask(stage, previous_response_id=made["id"])).status == 200


async def test_an_item_is_referred_to(stage: Stage) -> None:
    stage.s.play(answers({"content": "hello", "reasoning": "Hm."}))
    kept = (await ask(stage)).json["output"]
    again = [{"role": "user", "content": "hi"}, *({"type": "item_reference", "id": item["id"]} for item in kept)]
    stage.s.play(answers({"content": "again"}))
    reply = await ask(stage, input=[*again, {"role": "user", "content": "and?"}])
    assert reply.status == 200
    sent = stage.s.turns[-1].json["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert (sent[1]["content"], sent[1]["reasoning_content"]) == ("hello", "Hm.")
    for refused in (await ask(stage, "key-two", input=again), await ask(stage, input=[{**again[1], "id": "rs_no_0"}])):
        assert refused.status == 404


async def test_an_item_of_a_server_that_gives_its_own_ids_is_referred_to(stage: Stage) -> None:
    stage.s.responds = True
    stage.s.play(
        lambda turn: turn.send(json_answer(native.whole(native.thoughts("hm"), native.call({"city": "Oslo"}))))
    )
    kept = (await ask(stage, tools=[TOOL])).json["output"]
    result = {"type": "function_call_output", "call_id": kept[1]["call_id"], "output": "rain"}
    again = [
        {"role": "user", "content": "hi"},
        *({"type": "item_reference", "id": item["id"]} for item in kept),
        result,
    ]
    stage.s.responds = False
    stage.s.play(answers({"content": "It rains."}))
    assert (await ask(stage, tools=[TOOL], input=again)).status == 200
    sent = stage.s.turns[-1].json["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Oslo"}'


async def test_an_item_that_was_said_inside_the_lan_does_not_leave_it(stage: Stage) -> None:
    kept = (await ask(stage, "key-one", "x-gateway-local-only: 1")).json["output"]
    reply = await ask(stage, model="far", input=[{"type": "item_reference", "id": kept[0]["id"]}])
    assert reply.status >= 400
    assert not stage.t.turns


async def test_the_same_request_id_of_two_clients_is_two_responses(stage: Stage) -> None:
    for key, text in (("key-one", "mine"), ("key-two", "theirs")):
        stage.s.play(answers({"content": text}))
        await ask(stage, key, "x-request-id: same")
    found = await stage.gateway.client.get(f"{PATH}/resp_same", headers={"authorization": "Bearer key-one"})
    assert found.json()["output"][0]["content"][0]["text"] == "mine"


async def test_a_request_id_that_comes_again_replaces_no_response(stage: Stage) -> None:
    """An agent that sends one id with all its requests goes on with its conversation."""
    names, previous = list[str](), None
    for number in range(4):
        stage.s.play(answers({"content": f"answer {number}"}))
        made = (await ask(stage, "key-one", "x-request-id: session", previous_response_id=previous)).json
        previous = made["id"]
        names.append(previous)
    messages = stage.s.turns[-1].json["messages"]
    assert [m["content"] for m in messages if m["role"] == "assistant"] == ["answer 0", "answer 1", "answer 2"]
    assert names[0] == "resp_session"
    assert len(set(names)) == 4
    assert all(name.startswith("resp_session-") for name in names[1:])


async def test_of_two_requests_with_one_id_at_a_time_both_responses_are_kept(stage: Stage) -> None:
    both, asked = asyncio.Event(), list[Any]()

    async def together(turn: Any) -> None:
        asked.append(turn)
        if len(asked) == 2:
            both.set()
        await both.wait()
        await answers({"content": "hello"})(turn)

    stage.s.play(together)
    async with asyncio.timeout(PATIENCE):
        replies = await asyncio.gather(*(ask(stage, "key-one", "x-request-id: twice") for _ in range(2)))
    names = [reply.json["id"] for reply in replies]
    assert len({*names, "resp_twice"}) == 2
    for name in names:
        found = await stage.gateway.client.get(f"{PATH}/{name}", headers={"authorization": "Bearer key-one"})
        assert found.status_code == 200


async def test_nothing_is_kept_of_store_false_and_of_a_failure(stage: Stage) -> None:
    made = (await ask(stage, store=False)).json
    assert made["store"] is False
    assert (await ask(stage, previous_response_id=made["id"])).status == 404

    async def fails(turn: Any) -> None:
        turn.reset()

    stage.s.play(fails)
    await ask(stage, "key-one", "x-request-id: failed")
    found = await stage.gateway.client.get(f"{PATH}/resp_failed", headers={"authorization": "Bearer key-one"})
    assert found.status_code == 404
    stage.gateway.gateway.fleet["s"].evidence.succeeded()


async def test_many_references_to_one_large_item_are_too_large(stage: Stage) -> None:
    stage.s.play(answers({"content": "x" * 1_000_000}))
    item = (await ask(stage)).json["output"][0]
    asked = len(stage.s.turns)
    reply = await ask(stage, input=[{"type": "item_reference", "id": item["id"]}] * 100)
    assert (reply.status, reply.json["error"]["code"]) == (413, "request_too_large")
    assert len(stage.s.turns) == asked


async def test_what_was_said_inside_the_lan_does_not_leave_it_later(stage: Stage) -> None:
    made = (await ask(stage, "key-one", "x-gateway-local-only: 1")).json
    refused = await ask(stage, model="far", previous_response_id=made["id"])
    assert refused.status >= 400
    assert not stage.t.turns
    second = (await ask(stage, previous_response_id=made["id"])).json
    assert (await ask(stage, model="far", previous_response_id=second["id"])).status >= 400
    free = (await ask(stage)).json
    assert (await ask(stage, model="far", previous_response_id=free["id"])).status == 200


async def test_a_conversation_larger_than_a_body_may_be_is_refused() -> None:
    async with scripted(answers({"content": "x" * 4000})) as backend:
        routes = f"""
server: {{keep_responses: 1h, max_body: 10KiB}}
backends: {{s: {{url: "{backend.url}"}}}}
aliases: {{chat: [s]}}
"""
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("s")
            previous = None
            for status in (200, 200, 413):
                body = {"model": "chat", "input": "x" * 2500, "previous_response_id": previous}
                reply = await raw_post(gateway.url, body, PATH)
                assert reply.status == status
                previous = reply.json.get("id")


async def test_without_the_key_what_was_kept_is_dropped(tmp_path: Path) -> None:
    async with scripted(answers({"content": "hello"})) as backend:
        routes = f"""
server: {{data: "{tmp_path}"{{keep}}}}
backends: {{s: {{url: "{backend.url}"}}}}
aliases: {{chat: [s]}}
"""
        asked = {"model": "chat", "input": "hi"}
        found: list[int] = []
        for keep in (", keep_responses: 1h", ", keep_responses: 1h", "", ", keep_responses: 1h"):
            async with running_gateway(routes.replace("{keep}", keep)) as gateway:
                await gateway.until_ready("s")
                if not found:
                    made = (await raw_post(gateway.url, asked, PATH)).json["id"]
                found.append((await gateway.client.get(f"{PATH}/{made}")).status_code)
                if not keep:
                    reply = await raw_post(gateway.url, {**asked, "previous_response_id": made}, PATH)
                    assert (reply.status, reply.json["error"]["code"]) == (400, "input_unsupported")
        assert found == [200, 200, 404, 404]


async def test_on_a_full_disk_a_client_has_its_answer_and_the_shortage_is_counted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.shortage.FREE_LEAST", 10**18)
    before = stage.gateway.metric("gateway_shortages_total", kind="disk")
    answer = await ask(stage, input="hello")
    assert answer.status == 200
    await stage.gateway.until(lambda: stage.gateway.metric("gateway_shortages_total", kind="disk") > before)
    assert not stage.gateway.metric("gateway_internal_failures_total", part="conversations")
