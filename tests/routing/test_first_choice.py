"""The first choice without a plan is always the plan's first candidate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.failover import FailoverState
from gateway.config.snapshot import Alias, Client
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import EMBEDDINGS
from gateway.domain.request import InferenceRequest
from gateway.routing.first_choice import first_choice
from gateway.routing.placements import Session
from gateway.routing.plan import Candidate, make_plan
from tests.routing.fleets import Case, cases
from tests.routing.parts import NOW, Condition, alias, backend, fleet, request
from tests.routing.test_pure import aliases, clients, fleets, held, often, requests

SESSION = Session(b"a session")


def chosen(asked: InferenceRequest, way: Alias, states: dict[str, BackendState], **how: Any) -> Candidate | None:
    how = {"local_only": False, "turn": 0, "client": None, **how}
    return first_choice(way, states, asked, NOW, session=lambda: SESSION, **how)


def planned(asked: InferenceRequest, way: Alias, states: dict[str, BackendState], **how: Any) -> list[Candidate]:
    return make_plan(way, states, asked, NOW, session=lambda: SESSION, **how).candidates


@often
@given(aliases, fleets, requests(), clients, st.integers(0, 3))
def test_the_choice_is_the_first_candidate_of_the_plan(
    way: Alias, members: tuple[BackendState, ...], asked: InferenceRequest, client: Client | None, turn: int
) -> None:
    states = {state.name: state for state in members}
    how = {"client": client, "local_only": client is not None and client.local_only, "turn": turn}
    choice = held(lambda: chosen(asked, way, states, **how), way, states, asked, client)
    if choice is not None:
        assert choice == planned(asked, way, states, **how)[0]
        assert (choice.state.backend.cloud, choice.step, choice.doubtful) == (False, 0, False)


@often
@given(cases(), requests())
def test_so_it_is_in_fleets_of_any_kind(case: Case, asked: InferenceRequest) -> None:
    choice = chosen(asked, case.alias, case.states)
    assert choice is None or choice == planned(asked, case.alias, case.states)[0]


def test_a_ready_backend_of_the_first_step_is_chosen_without_a_plan() -> None:
    states = fleet(backend("a"), backend("b", "down"))
    for way in (alias("a", "b"), alias(("a", "b"))):
        choice = chosen(request(), way, states)
        assert choice is not None, way.steps
        assert choice.state is states["a"]
    tools = request(tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="required")
    assert chosen(tools, alias("a"), states) == planned(tools, alias("a"), states)[0]


def test_where_the_plan_has_to_decide_there_is_no_choice() -> None:
    cases: dict[str, BackendState] = {
        "down": backend("a", "down"),
        "a pause": backend("a", "cooldown"),
        "too long": backend("a", "too_long"),
        "a cloud": backend("a", cloud=True),
        "a common memory": backend("a", kv_pool=100_000),
    }
    for why, state in cases.items():
        assert chosen(request(max_tokens=200), alias("a", "b"), fleet(state, backend("b"))) is None, why


def test_vectors_are_left_to_the_plan() -> None:
    """A backend of another model may stand in the step."""
    assert chosen(request(EMBEDDINGS, input="x"), alias("a"), fleet(backend("a"))) is None


def test_a_prompt_near_the_window_is_left_to_the_plan() -> None:
    """The backend may have to count it."""
    words = request(messages=[{"role": "user", "content": "x" * 50_000}])
    assert chosen(words, alias("a"), fleet(backend("a", context=32_768))) is None
    assert chosen(words, alias("a"), fleet(backend("a", context=131_072))) is not None


def test_a_backend_that_was_edited_during_its_first_attempt_gets_no_second_one() -> None:
    """The plan is made after the attempt has failed, of the fleet as it is then."""
    before, after = backend("a"), fleet(backend("a"), backend("b"))
    failover = FailoverState(lambda *_: make_plan(alias("a", "b"), after, request(), NOW), None)
    failover.mark_begun(Candidate(before, 0))
    assert [candidate.state for candidate in failover.remaining] == [after["b"]]


@pytest.mark.parametrize("now", ["ok", "suspect", "unknown", "down", "warming", "misconfigured", "parked", "incapable"])
def test_a_backend_that_went_away_during_its_first_attempt_has_failed(now: Condition) -> None:
    """Not what it has become meanwhile is why another one serves, as with a plan that was made before the attempt."""
    after = {"a": backend("a", now), "b": backend("b")}
    way = alias("a", "b")
    failover = FailoverState(lambda *_: make_plan(way, after, request(), NOW), None)
    tried = Candidate(after["a"], 0)
    failover.mark_begun(tried)
    failover.mark_failed(tried, "failed")
    assert [candidate.state.name for candidate in failover.plan.candidates] == ["a", "b"]
    assert [candidate.state.name for candidate in failover.remaining] == ["b"]
    assert failover.plan.detour(failover.remaining[0]) == ("fallback", "failed")
    assert failover.recovering(NOW) == ()
