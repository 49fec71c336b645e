"""A request comes to the same whether it is served by what was decided ahead or is decided anew: what the client gets,
what the backends get and when, what is counted and logged."""

from __future__ import annotations

import time
from dataclasses import replace as with_
from typing import Any

import pytest

import tests.scenarios_of_attempts  # noqa: F401  (its scenarios are added by the import)
from gateway.config.snapshot import Alias
from gateway.domain.health_state import State
from gateway.proxy import decided, decisions
from gateway.proxy.decided import TABLE, fields_of, is_usual
from gateway.proxy.services import DecidesAhead
from tests.proxy.test_decisions_random import TOOLS, chunk
from tests.scenarios import CALL, PICTURE, SCENARIOS, WELL, House, outcome, said, scenario
from tests.scripted import SSE_HEAD, Turn, chunked


@scenario()
async def a_usual_request_is_served(h: House) -> None:
    await h.ask(times=3)


# -- what the answer is rewritten to, without that being counted -------------------------------------------------------


@scenario()
async def a_call_without_an_id_gets_one(h: House) -> None:
    h.a.play(said({"role": "assistant", "content": None, "tool_calls": [CALL]}, "tool_calls"))
    await h.ask(times=3, tools=TOOLS)
    await h.ask(times=3, tools=TOOLS, stream=True)


@scenario()
async def a_call_with_an_id_that_is_null_gets_one(h: House) -> None:
    h.a.play(said({"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": None}]}, "tool_calls"))
    await h.ask(times=3, tools=TOOLS)
    await h.ask(times=3, tools=TOOLS, stream=True)


@scenario()
async def an_index_that_two_calls_have_is_corrected(h: House) -> None:
    calls = [{**CALL, "id": "c1", "index": 0}, {**CALL, "id": "c2", "index": 0}]
    h.a.play(said({"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls"))
    await h.ask(times=3, tools=TOOLS)
    await h.ask(times=3, tools=TOOLS, stream=True)


@scenario()
async def thoughts_that_are_empty_are_left_out(h: House) -> None:
    h.a.play(said({"role": "assistant", "content": "<think>\n\n</think>\n\nTwelve."}))
    for fields in ({}, {"tools": TOOLS}, {"stream": True}, {"tools": TOOLS, "stream": True}):
        await h.ask(times=3, **fields)


@scenario("model: Qwen/Qwen3-8B")
async def what_a_family_marks_is_taken_out(h: House) -> None:
    for text in ("<think>\n\n</think>\n\nTwelve.", "Hm</think>Twelve.", "So <tool_call>\n</tool_call> it is."):
        h.a.play(said({"role": "assistant", "content": text}))
        await h.ask(times=3, tools=TOOLS)
        await h.ask(times=3)


# -- what is not decided ahead: the alias ------------------------------------------------------------------------------


@scenario(alias="{ask_all: [a, b]}")
async def all_are_asked(h: House) -> None:
    await h.ask(times=3)


@scenario(alias="{use: [a, b], resume: true}")
async def a_stream_is_resumed(h: House) -> None:
    async def breaks(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(chunk({"role": "assistant", "content": "Twelve of"})))
        turn.close()

    await h.ask(times=2, stream=True)
    h.a.play(breaks)
    await h.ask(stream=True)


@scenario(alias="{use: [a, b], min_max_tokens: 100}")
async def a_small_limit_is_raised(h: House) -> None:
    for limit in (500, 5, None, 50):
        await h.ask(max_tokens=limit)


@scenario(alias="{use: [a, b], reasoning_field: reasoning_content}")
async def thoughts_are_renamed(h: House) -> None:
    h.a.play(said({"role": "assistant", "reasoning": "Hm", "content": "Twelve."}))
    for fields in ({}, {"tools": TOOLS}, {"stream": True}, {"tools": TOOLS, "stream": True}):
        await h.ask(times=2, **fields)


@scenario(alias="{use: [a, b], thinking: 'off'}", keys="thinking: optional")
async def thinking_is_forced(h: House) -> None:
    await h.ask(times=2)
    await h.ask(times=2, chat_template_kwargs={"enable_thinking": True})


@scenario(alias="{use: [a, b], params: {max_tokens: 40, mirostat: {tau: 5}}}")
async def params_are_filled_in(h: House) -> None:
    for limit in (None, 7, None, 9):
        await h.ask(max_tokens=limit)
    for value in ({"tau": 5}, {"eta": 1}, {"tau": 9}):
        await h.ask(mirostat=value)
    await h.ask(times=2)


# -- the client --------------------------------------------------------------------------------------------------------

TASKS = "clients: {webui: {key: k-webui-long-enough, tasks: {alias: other}}}"


@scenario(more=TASKS)
async def a_task_goes_to_its_alias(h: House) -> None:
    h.headers["authorization"] = "Bearer k-webui-long-enough"
    await h.ask(times=2)
    task = [{"role": "user", "content": "### Task:\nGenerate a concise title.\n### Output:\nJSON"}]
    await h.ask(times=2, messages=task)


@scenario()
async def an_id_that_the_client_chose_is_kept(h: House) -> None:
    h.headers["x-request-id"] = "mine-1"
    await h.ask(times=2)


@scenario()
async def a_body_in_an_unknown_encoding_is_refused(h: House) -> None:
    h.headers["content-encoding"] = "rot13"
    await h.ask(times=2)


# -- the request -------------------------------------------------------------------------------------------------------


@scenario()
async def several_choices_take_several_slots(h: House) -> None:
    async def counts(turn: Turn) -> None:
        h.seen.append(h.gateway.gateway.fleet["a"].inflight)
        await WELL(turn)

    h.a.play(counts)
    await h.ask(times=2, n=3)


@scenario()
async def a_text_is_continued(h: House) -> None:
    begun = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two,"}]
    h.a.play(said({"role": "assistant", "content": "One, two, three"}))
    for stream in (False, True):
        await h.ask(times=2, messages=begun, stream=stream, continue_final_message=True, add_generation_prompt=False)


@scenario("vision: false")
async def a_body_without_messages_is_passed_on(h: House) -> None:
    await h.ask(times=2, leave=("messages",))


@scenario("vision: false, tool_parser: hermes")
async def pictures_go_where_they_are_seen(h: House) -> None:
    await h.ask(times=2)
    picture = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *PICTURE]}]
    await h.ask(times=2, messages=picture)
    await h.ask()


@scenario("audio: false, tool_parser: hermes")
async def pictures_are_taken_where_only_sound_is_not(h: House) -> None:
    picture = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *PICTURE]}]
    await h.ask(times=2, messages=picture)
    await h.ask(times=2)


@scenario()
async def a_stream_that_is_asked_for_by_a_number_is_one(h: House) -> None:
    await h.ask(times=2, stream=1)
    await h.ask(times=2, stream="true")


@scenario()
async def tools_that_are_none_are_none(h: House) -> None:
    h.a.play(said({"role": "assistant", "content": '<tool_call>{"name": "look", "arguments": {}}</tool_call>'}))
    for tools in ([], TOOLS, [], TOOLS):
        await h.ask(times=2, tools=tools)


@scenario()
async def a_call_that_is_required_comes(h: House) -> None:
    named = {"type": "function", "function": {"name": "look"}}
    for script in (
        WELL,
        said({"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": "c"}]}, "tool_calls"),
    ):
        h.a.play(script)
        for choice in ("required", named):
            await h.ask(times=2, tools=TOOLS, tool_choice=choice)
            await h.ask(times=2, tools=TOOLS, tool_choice=choice, stream=True)


@scenario("tool_parser: kimi_k2")
async def a_call_that_the_parser_does_not_enforce_is_verified(h: House) -> None:
    for stream in (False, True):
        await h.ask(times=2, tools=TOOLS, tool_choice="required", stream=stream)


@scenario()
async def what_only_the_server_decides_is_left_out_and_told(h: House) -> None:
    await h.ask(times=2, priority=3)
    await h.ask(times=2, request_id="mine")


@scenario("thinking: never", alias="{use: [[a, b]], balance: round_robin}")
async def one_that_thinks_is_preferred_where_that_is_wished(h: House) -> None:
    await h.ask(times=4, reasoning_effort="high")


# -- the backend -------------------------------------------------------------------------------------------------------


@scenario("cloud: true", alias="{use: [a, b], cloud_when: [down]}")
async def a_cloud_is_asked_as_one(h: House) -> None:
    await h.ask(times=3)
    await h.ask(times=2, stream=True)


@scenario("price: {input: 5, output: 10}, budget: 0.0002 USD/day")
async def what_costs_money_is_counted(h: House) -> None:
    await h.ask(times=6)


@scenario("engine: llamacpp, context: 4000, kv_pool: 8000")
async def a_shared_memory_is_not_overfilled(h: House) -> None:
    await h.ask(times=2)
    await h.ask(times=2, n_predict=5)
    await h.ask(times=2, max_tokens=100)


@scenario()
async def a_short_answer_is_given_room(h: House) -> None:
    h.trait(short_answers=True)
    for words in (10, 5000, 10, 2000):
        await h.ask(messages=[{"role": "user", "content": "word " * words}])


@scenario()
async def tools_are_withheld_where_the_server_would_not(h: House) -> None:
    h.trait(withholds_tools=False)
    await h.ask(times=2, tools=TOOLS, tool_choice="none")


@scenario()
async def an_answer_is_ended_where_the_server_would_not(h: House) -> None:
    h.trait(enforces_stop=False)
    h.a.play(said({"role": "assistant", "content": "Twelve of them."}))
    await h.ask(times=2, stop=["of"])
    await h.ask(times=2, stop=["of"], stream=True)


@scenario()
async def whole_numbers_become_floats(h: House) -> None:
    h.trait(integer_bias=False)
    await h.ask(times=2, logit_bias={"5": 1})


@scenario()
async def a_whole_answer_is_asked_for_as_a_stream(h: House) -> None:
    h.trait(stops_unstreamed=False)
    await h.ask(times=2)


@scenario("tool_parser: none", alias="[a, b]")
async def tools_go_where_they_can_be_called(h: House) -> None:
    await h.ask(times=2, tools=TOOLS)
    await h.ask(times=2)


@scenario("thinking: always", alias="[a, b]")
async def tools_go_first_where_they_are_surely_called(h: House) -> None:
    await h.ask(times=2, tools=TOOLS)
    await h.ask(times=2)


@scenario("model: deepseek-ai/DeepSeek-R1")
async def what_was_learned_for_a_while_is_forgotten(h: House) -> None:
    h.a.play(said({"role": "assistant", "content": "Hm</think>Twelve."}))
    state = h.gateway.gateway.fleet["a"]
    state.facts.believe_lack("reasoning_split", time.monotonic() + 0.5, "r")
    await h.ask(times=2, stream=True)
    await h.gateway.until(lambda: not state.facts.is_lacking("reasoning_split", time.monotonic()))
    h.a.play(said({"role": "assistant", "content": "Twelve."}))
    await h.ask(times=2, stream=True)


@scenario()
async def a_backend_that_loads_its_model_is_waited_for(h: House) -> None:
    state = h.gateway.gateway.fleet["a"]
    await h.ask(times=2)
    state.saw_loaded(False)
    await h.ask(times=2)
    state.saw_loaded(True)
    await h.ask(times=2)


@scenario("model: some/model")
async def a_prompt_near_the_window_is_counted(h: House) -> None:
    h.gateway.gateway.fleet["a"].saw_model("some/model", 400)
    await h.ask(times=2)
    long = [{"role": "user", "content": "word " * 300}]
    await h.ask(times=2, messages=long)
    await h.ask(times=2, messages=long, max_tokens=200)
    await h.ask(times=2, max_tokens=399)
    await h.ask(times=2)


@scenario("context: 4000, kv_pool: 8000")
async def a_memory_that_the_slots_share_bounds_the_answer(h: House) -> None:
    for words in (10, 1000, 10, 500):
        await h.ask(messages=[{"role": "user", "content": "word " * words}])
    await h.ask(times=2, n_predict=5)


@scenario("engine: ollama, model: some/model")
async def an_engine_is_asked_in_its_own_way(h: House) -> None:
    await h.ask(times=2)


@scenario(
    "cloud: true", more="clients: {one: {key: k-one-long-enough, local_only: true}, two: {key: k-two-long-enough}}"
)
async def what_must_stay_in_the_lan_stays_there(h: House) -> None:
    for client in ("two", "one", "two", "one"):
        h.headers["authorization"] = f"Bearer k-{client}-long-enough"
        await h.ask(times=2)
    h.headers["authorization"] = "Bearer k-two-long-enough"
    h.headers["x-gateway-local-only"] = "yes"
    await h.ask(times=2)


@scenario(more="clients: {one: {key: k-one-long-enough, rpm: 3}, two: {key: k-two-long-enough, tpm: 100}}")
async def limits_of_clients_hold(h: House) -> None:
    for client in ("one", "two"):
        h.headers["authorization"] = f"Bearer k-{client}-long-enough"
        await h.ask(times=6)


# -- what changes after it was decided ---------------------------------------------------------------------------------


@scenario()
async def a_backend_that_goes_down_is_not_asked(h: House) -> None:
    await h.ask(times=3)
    h.gateway.gateway.fleet["a"].cooldown_until = time.monotonic() + 60
    await h.ask(times=2)
    h.gateway.gateway.fleet["a"].cooldown_until = 0.0
    await h.ask(times=2)


@scenario()
async def one_that_is_down_is_left_out(h: House) -> None:
    await h.ask(times=3)
    health = h.gateway.gateway.fleet["a"].health
    before, health.state = health.state, State.DOWN
    await h.ask(times=2)
    health.state = before
    await h.ask(times=2)


@scenario()
async def another_model_is_asked_for_by_its_name(h: House) -> None:
    await h.ask(times=3)
    h.gateway.gateway.fleet["a"].saw_model("another/model", 131072)
    await h.ask(times=2)


@scenario()
async def an_edit_is_in_force_at_once(h: House) -> None:
    await h.ask(times=3)
    snapshot = h.gateway.gateway.snapshot
    edited = with_(snapshot.aliases["chain"], params={"temperature": 0.5}, steps=(("b",), ("a",)))
    await h.gateway.gateway.put_in_force(with_(snapshot, aliases={**snapshot.aliases, "chain": edited}))
    await h.ask(times=2)


@scenario(more="clients: {one: {key: k-one-long-enough}, two: {key: k-two-long-enough, aliases: [other]}}")
async def each_client_asks_for_what_it_may(h: House) -> None:
    for client in ("one", "two", "one", "two"):
        h.headers["authorization"] = f"Bearer k-{client}-long-enough"
        await h.ask(times=2)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_what_is_decided_ahead_comes_to_the_same(name: str) -> None:
    anew, ahead = [await outcome(name, how) for how in ("never", "first")]
    assert ahead == anew


async def test_nothing_is_decided_ahead_where_that_is_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    decide = decisions.decide

    def noted(*given: Any) -> decisions.Decision | None:
        made.append(given)
        return decide(*given)

    monkeypatch.setattr(decisions, "decide", noted)
    by_name: dict[DecidesAhead, int] = {"never": 0, "first": 1, "repeated": 1}
    for how, count in by_name.items():
        made.clear()
        await outcome("a_usual_request_is_served", how)
        assert len(made) == count


def test_every_field_on_which_a_request_depends_is_in_the_table() -> None:
    for kind, named in TABLE.items():
        assert sorted(named.names()) == sorted(fields_of(kind)), f"{kind.__name__}: name the field in TABLE, once"


def test_a_field_that_the_table_does_not_name_is_not_decided_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    named = TABLE[Alias]._replace(nothing=TABLE[Alias].nothing.replace("priority ", ""))
    monkeypatch.setitem(decided.CHECKS, Alias, decided.checks_of(Alias, named))
    usual = Alias("chat", (("a",),))
    assert is_usual(usual)
    assert not is_usual(with_(usual, priority="batch"))
    assert not is_usual(with_(usual, min_max_tokens=5))
