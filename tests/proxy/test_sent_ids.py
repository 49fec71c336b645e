"""Request ids that clients choose: no two requests have one id at a backend, and each client sees its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.sent_ids import AFTER_CUT, FEW, SentIds
from tests.scripted import PATIENCE, ScriptedBackend, Turn, json_answer, raw_post, scripted
from tests.support import running_gateway

ASK: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
MINE = ["x-request-id: mine"]

# -- which ids are taken ----------------------------------------------------------------------------------------------


def test_a_taken_id_gets_longer_and_is_free_again_after_its_answer() -> None:
    ids = SentIds()
    assert ids.take("mine", 0.0) == "mine"
    other = ids.take("mine", 0.0)
    assert other.startswith("mine-")
    ids.release("mine", 1.0, ended=True)
    assert ids.take("mine", 1.0) == "mine"
    ids.release(other, 1.0, ended=True)
    ids.release("mine", 1.0, ended=True)
    assert len(ids) == 0


def test_gateways_of_one_fleet_never_send_the_same_id() -> None:
    one, two = SentIds(among_others=True), SentIds(among_others=True)
    sent = [ids.take("mine", 0.0) for ids in (one, one, two, two)]
    assert len(set(sent)) == 4
    assert all(name.startswith("mine-") for name in sent)
    one.release(sent[0], 1.0, ended=True)
    assert one.take("mine", 1.0) == sent[0]


def test_an_id_that_was_cut_off_is_taken_until_its_engine_is_done_with_it() -> None:
    ids = SentIds()
    ids.release(ids.take("mine", 0.0), 5.0, ended=False)
    assert ids.take("mine", 5.0 + AFTER_CUT - 0.1) != "mine"
    assert ids.take("mine", 5.0 + AFTER_CUT) == "mine"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.floats(0, 60)), max_size=40))
def test_no_two_requests_that_run_have_one_id(steps: list[tuple[str, bool, float]]) -> None:
    ids, running, now = SentIds(), list[str](), 0.0
    for wanted, ends, passed in steps:
        now += passed
        sent = ids.take(wanted, now)
        assert sent not in running
        running.append(sent)
        if ends:
            ids.release(running.pop(0), now, ended=passed < 30)


def test_ids_that_are_free_again_are_forgotten() -> None:
    ids = SentIds()
    for number in range(20 * FEW):
        ids.release(ids.take(str(number), float(number)), float(number), ended=False)
    assert len(ids) <= FEW


# -- what backends get ------------------------------------------------------------------------------------------------


def routes(backend: ScriptedBackend) -> str:
    return f"backends:\n  b: {{url: '{backend.url}'}}\naliases: {{chat: {{use: [b]}}}}\n"


async def answered(turn: Turn) -> None:
    message = {"role": "assistant", "content": turn.headers["x-request-id"]}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    await turn.send(json_answer({"id": "x", "model": turn.json["model"], "choices": [choice]}))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_two_requests_with_one_id_are_two_for_the_backend(path: str) -> None:
    both, waiting = asyncio.Event(), list[str]()

    async def until_both(turn: Turn) -> None:
        waiting.append(turn.headers["x-request-id"])
        if len(waiting) == 2:
            both.set()
        await both.wait()
        await answered(turn)

    async with scripted(until_both, apart=True) as backend, running_gateway(routes(backend)) as gateway:
        await gateway.until_ready("b")
        body = {**ASK, "max_tokens": 5}
        async with asyncio.timeout(PATIENCE):
            replies = await asyncio.gather(*(raw_post(gateway.url, body, path, MINE) for _ in range(2)))
        assert [(reply.status, reply.headers["x-request-id"]) for reply in replies] == [(200, "mine")] * 2
        assert sorted(waiting)[0] == "mine"
        assert len(set(waiting)) == 2
        assert (await raw_post(gateway.url, body, path, MINE)).status == 200  # one after another they may be the same
        assert waiting[-1] == "mine"
        assert len(gateway.gateway.services.sent_ids) == 0


async def test_after_a_cut_the_backend_gets_another_id() -> None:
    came = asyncio.Event()

    async def silent(turn: Turn) -> None:
        came.set()
        await turn.until_lost()

    async with scripted(silent, answered, apart=True) as backend, running_gateway(routes(backend)) as gateway:
        await gateway.until_ready("b")
        async with asyncio.timeout(PATIENCE):
            left = asyncio.create_task(raw_post(gateway.url, ASK, headers=MINE))
            await came.wait()
            left.cancel()
            await asyncio.wait([left])
            await gateway.until(gateway.idle)
        reply = await raw_post(gateway.url, ASK, headers=MINE)
        assert reply.headers["x-request-id"] == "mine"
        assert reply.json["choices"][0]["message"]["content"].startswith("mine-")


async def test_an_error_of_the_backend_frees_the_id() -> None:
    async def refused(turn: Turn) -> None:
        await turn.send(json_answer({"error": {"message": "no", "code": 400}}, "400 Bad Request"))

    async with scripted(refused, answered, apart=True) as backend, running_gateway(routes(backend)) as gateway:
        await gateway.until_ready("b")
        assert (await raw_post(gateway.url, ASK, headers=MINE)).status == 400
        reply = await raw_post(gateway.url, ASK, headers=MINE)
        assert reply.json["choices"][0]["message"]["content"] == "mine"
