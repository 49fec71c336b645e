"""A decision holds for requests that are alike, as long as nothing that it was made of has changed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.admission.access import Caller
from gateway.proxy import decisions
from gateway.proxy.decisions import NAMES_MOST, SHAPES_MOST, VALUE_MOST, Decision, Decisions
from tests.proxy.house import House, house, released, well
from tests.proxy.test_handler_decided import broken
from tests.scripted import Turn

MEDIA = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]


async def ran_on_kept(h: House, **fields: Any) -> bool:
    """Ask once. Did the request run on what was decided before?"""
    h.kept.clear()
    await h.ask(**fields)
    assert (await h.client.answer())[0] == 200
    await h.gateway.until(h.gateway.idle)
    return bool(h.kept)


async def test_requests_with_other_prompts_and_limits_are_alike() -> None:
    async with house() as h:
        await h.prepared(well, max_tokens=5, temperature=0.1)
        for limit, temperature in ((1, 0.9), (700, None), (None, 1)):
            assert await ran_on_kept(h, max_tokens=limit, temperature=temperature)
            assert h.a.turns[-1].json["max_tokens"] == limit
            assert h.a.turns[-1].json["temperature"] == temperature


@pytest.mark.parametrize("limit", [0, -1, 1.5, "9", True, 10**20])
async def test_a_request_with_an_invalid_limit_is_decided_anew(limit: object) -> None:
    async with house() as h:
        await h.prepared(well, max_tokens=5)
        assert not await ran_on_kept(h, max_tokens=limit)
        assert await ran_on_kept(h, max_tokens=5)


async def test_what_is_known_of_a_backend_is_asked_again_when_it_changes() -> None:
    async with house() as h:
        await h.prepared(well)
        state = h.gateway.gateway.fleet["a"]
        state.saw_model("another/model", 131072)
        assert not await ran_on_kept(h)
        assert await ran_on_kept(h)
        assert h.a.turns[-1].json["model"] == "another/model"


async def test_the_same_report_again_changes_nothing() -> None:
    async with house() as h:
        await h.prepared(well)
        state = h.gateway.gateway.fleet["a"]
        before = state.revision
        state.saw_model(state.reported.model, state.reported.context)
        state.saw_loaded(state.reported.loaded)
        assert state.revision == before
        assert await ran_on_kept(h)


async def test_a_learned_lack_a_pause_and_a_window_end_it() -> None:
    async with house() as h:
        await h.prepared(well)
        state, loop = h.gateway.gateway.fleet["a"], asyncio.get_running_loop()
        state.facts.learn_lack("images", loop.time())
        assert not await ran_on_kept(h)
        state.facts.forget()
        await h.prepared(well)
        state.cooldown_until = loop.time() + 60
        assert not await ran_on_kept(h)
        assert h.count("200", "b") == 1
        state.cooldown_until = 0.0
        await h.prepared(well, max_tokens=5)
        assert not await ran_on_kept(h, max_tokens=131_070), "it may have to be clamped"
        assert await ran_on_kept(h, max_tokens=100_000)


async def test_an_edit_ends_it() -> None:
    async with house() as h:
        await h.prepared(well)
        snapshot = h.gateway.gateway.snapshot
        await h.gateway.gateway.put_in_force(replace(snapshot))
        assert await ran_on_kept(h), "it is made anew"
        (made,) = [made for _, made in caller_of(h).decisions._shapes.values() if made]
        assert all(d.snapshot is h.gateway.gateway.snapshot for d in made.values())


def caller_of(h: House) -> Caller:
    connections: Any = h.gateway.server.server_state.connections
    found: list[Caller] = [c._repeated.caller for c in connections if c._repeated is not None]
    return next(caller for caller in found if caller.decisions is not None)


async def test_pictures_are_looked_for_where_they_matter() -> None:
    async with house("vision: false") as h:
        await h.prepared(well)
        assert await ran_on_kept(h)
        assert not await ran_on_kept(h, messages=MEDIA)
        assert h.count("200", "b") == 1


async def test_params_that_are_merged_with_the_clients_value_are_filled_in_for_each_request() -> None:
    async with house() as h:
        for client in ({"tau": 5}, {"tau": 5}, {"tau": 5}, {"eta": 1}, {"tau": 9}, {}):
            assert not await ran_on_kept(h, alias="merged", mirostat=client)
            assert h.a.turns[-1].json["mirostat"] == {"tau": 5, **client}
        for _ in range(2):
            taken = await ran_on_kept(h, alias="merged", temperature=1)
            assert h.a.turns[-1].json["mirostat"] == {"tau": 5}
        assert taken


async def test_a_request_that_has_waited_for_a_slot_runs_on_what_was_decided() -> None:
    go = asyncio.Event()

    async def held(turn: Turn) -> None:
        await go.wait()
        await well(turn)

    async with house() as h:
        await h.prepared(held)
        h.gateway.gateway.fleet["a"].inflight += 4
        h.kept.clear()
        await h.ask()
        await h.gateway.until(lambda: len(h.gateway.gateway.admission.scheduler.waiters) == 1)
        h.gateway.gateway.fleet["a"].inflight -= 4
        go.set()
        assert (await h.client.answer())[0] == 200
        assert h.kept


async def test_what_a_client_sends_is_kept_within_bounds() -> None:
    async with house() as h:
        await h.prepared(well)
        for number in range(3 * SHAPES_MOST):
            await ran_on_kept(h, **{f"field_{number}": 1})
            await ran_on_kept(h, user="x", stop=[f"word {number}"])
        await ran_on_kept(h, **{"n" * (NAMES_MOST + 1): 1})
        await ran_on_kept(h, stop=["x" * VALUE_MOST])
        kept: Decisions = caller_of(h).decisions
        assert len(kept._shapes) <= SHAPES_MOST
        for names, (_, made) in kept._shapes.items():
            assert sum(map(len, names)) <= NAMES_MOST
            assert len(made) <= SHAPES_MOST
            assert all(len(value) <= VALUE_MOST for values in made for value in values)


async def test_what_was_not_decided_is_not_looked_at_for_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    decide = decisions.decide

    def counted(*given: Any) -> Decision | None:
        made.append(given)
        return decide(*given)

    monkeypatch.setattr(decisions, "decide", counted)
    async with house() as h:
        await h.prepared(well)
        made.clear()
        for _ in range(4):
            assert not await ran_on_kept(h, continue_final_message=True, add_generation_prompt=False)
        assert len(made) == 1
        (kept,) = [
            d for _, all_ in caller_of(h).decisions._shapes.values() for d in all_.values() if type(d) is Decision
        ]
        assert kept.alias.name == "chain"


async def test_a_defect_in_what_is_kept_does_not_cost_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with house() as h:
        monkeypatch.setattr(decisions, "decide", broken)
        for _ in range(3):
            await h.ask()
            assert (await h.client.answer())[0] == 200
        assert not h.kept
        assert h.gateway.metric("gateway_internal_failures_total", part="decisions") >= 1
        await released(h)
