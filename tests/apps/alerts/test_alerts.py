"""What is told and when: the machine alone, time passed in."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.alerts.alert import Alert, FleetPicture, Timing, duration_text
from gateway.apps.alerts.alerts import AlertState
from gateway.domain.health_state import WELL, State
from gateway.routing.alias_status import AliasView, BackendView

READY = BackendView("a", State.READY)
DOWN = BackendView("a", State.DOWN, "connection refused")
HOME = AliasView("w", "home", 0, ("a",))
FALLBACK = AliasView("w", "fallback", 1, ("b",), "a is down (connection refused)")
CLOUD = AliasView("w", "cloud", 2, ("c",), "a is down; b is down")
NOTHING = AliasView("w", "nothing", why="a is down; b is down")


class Watched:
    """The machine, with what it has told so far."""

    def __init__(self, timing: Timing | None = None) -> None:
        self.state = AlertState(timing)
        self.now = 0.0
        self.told: list[Alert] = []

    def over(self, seconds: float, *views: BackendView | AliasView, every: float = 2.0, **more: Any) -> list[str]:
        """The kinds that are told while things stay so for these seconds."""
        backends = tuple(v for v in views if isinstance(v, BackendView))
        aliases = tuple(v for v in views if isinstance(v, AliasView))
        picture = FleetPicture(backends, aliases, **more)
        until = self.now + seconds
        before = len(self.told)
        while self.now < until:
            self.told += self.state.step(self.now, picture)
            self.now += every
        return [alert.kind for alert in self.told[before:]]

    @property
    def last(self) -> Alert:
        return self.told[-1]


# -- silence ----------------------------------------------------------------------------------------------------------


def test_what_is_well_is_never_told() -> None:
    watched = Watched()
    views = [BackendView(state.value, state) for state in (State.UNKNOWN, State.READY, State.BUSY, State.SUSPECT)]
    assert watched.over(100_000.0, *views, HOME, every=60.0) == []


def test_a_start_in_which_everything_comes_up_is_silent() -> None:
    watched = Watched()
    watched.over(4.0, BackendView("a", State.UNKNOWN), HOME)
    watched.over(600.0, BackendView("a", State.WARMING, "loads"), HOME)
    watched.over(600.0, READY, HOME)
    assert watched.told == []


@pytest.mark.parametrize("state", [State.PARKED, State.DOWN, State.WARMING, State.MISCONFIGURED])
def test_a_backend_that_runs_on_demand_is_never_told_of(state: State) -> None:
    assert Watched().over(10_000.0, BackendView("a", state, "gone", on_demand=True), every=30.0) == []


def test_draining_is_an_operators_wish() -> None:
    watched = Watched()
    watched.over(100.0, READY)
    assert watched.over(10_000.0, replace(READY, state=State.DRAINING), every=30.0) == []
    assert watched.over(100.0, READY) == []


# -- drafts -----------------------------------------------------------------------------------------------------------


def drafts(share: float | None) -> dict[str, Any]:
    return {"acceptance": {} if share is None else {"a": share}, "acceptance_least": 0.15}


def test_drafts_that_are_rejected_for_ten_minutes_are_told_once_and_so_is_the_end() -> None:
    watched = Watched()
    assert watched.over(3600.0, READY, **drafts(0.6)) == []
    assert watched.over(600.0, READY, **drafts(0.1)) == []
    assert watched.over(3600.0, READY, **drafts(0.05)) == ["draft_acceptance"]
    assert watched.last.text.startswith("a accepts only 5% of its draft tokens, for 10 min: ")
    assert watched.over(3600.0, READY, **drafts(0.6)) == ["draft_acceptance_back"]
    assert watched.last.good
    assert watched.last.text == "a accepts 60% of its draft tokens again, after 70 min"


def test_an_engine_that_does_not_draft_proves_nothing() -> None:
    watched = Watched()
    for _ in range(20):
        assert watched.over(300.0, READY, **drafts(0.1)) == []
        assert watched.over(60.0, READY, **drafts(None)) == []
    assert watched.over(700.0, READY, **drafts(0.1)) == ["draft_acceptance"]
    assert watched.over(3600.0, READY, **drafts(None)) == []
    assert watched.over(3600.0, READY, **drafts(0.1)) == []
    assert watched.over(10.0, READY, **drafts(0.2)) == ["draft_acceptance_back"]


def test_drafts_are_not_looked_at_where_the_least_share_is_0() -> None:
    assert Watched().over(7200.0, READY, acceptance={"a": 0.0}, acceptance_least=0.0) == []


# -- backends ---------------------------------------------------------------------------------------------------------


def test_down_for_a_minute_and_back_are_each_told_once() -> None:
    watched = Watched()
    watched.over(10.0, READY)
    assert watched.over(60.0, DOWN) == []
    assert watched.over(3600.0, DOWN) == ["backend_down"]
    assert watched.last.text == "a is down: connection refused"
    assert watched.last.at == 70.0
    assert watched.over(600.0, BackendView("a", State.WARMING)) == []
    assert watched.over(600.0, READY) == ["backend_back"]
    assert watched.last.good
    assert watched.last.text == "a is back, after 71 min"


def test_down_for_less_than_a_minute_is_not_told() -> None:
    watched = Watched()
    for _ in range(20):
        watched.over(50.0, DOWN)
        watched.over(10.0, READY)
    assert watched.told == []


def test_one_that_dies_again_and_again_while_it_starts_is_down() -> None:
    watched = Watched()
    warming = BackendView("a", State.WARMING)
    assert [kind for _ in range(3) for kind in watched.over(20.0, DOWN) + watched.over(20.0, warming)] == [
        "backend_down"
    ]


def test_one_request_at_a_time_is_not_back() -> None:
    watched = Watched()
    trial = BackendView("a", State.SUSPECT, trial=True)
    assert watched.over(40.0, DOWN) + watched.over(20.0, trial) + watched.over(10.0, DOWN) == ["backend_down"]
    assert watched.over(100.0, trial) == []
    assert watched.over(10.0, READY) == ["backend_back"]


def test_misconfigured_is_told_when_it_has_settled() -> None:
    watched = Watched()
    wrong = BackendView("a", State.MISCONFIGURED, "refuses our credential (401)")
    assert watched.over(8.0, wrong) == []
    assert watched.over(8.0, READY) == []
    assert watched.over(10.0, wrong) == []
    assert watched.over(500.0, wrong) == ["backend_misconfigured"]
    assert watched.last.text == "a is misconfigured: refuses our credential (401)"
    assert watched.over(100.0, DOWN) == ["backend_down"]
    assert watched.over(10.0, READY) == ["backend_back"]


def test_what_left_the_file_is_forgotten() -> None:
    watched = Watched()
    watched.over(100.0, DOWN, NOTHING)
    assert watched.over(10.0) == []
    assert watched.over(100.0, READY, HOME) == []


# -- aliases ----------------------------------------------------------------------------------------------------------


def test_on_a_fallback_and_back_are_each_told_once() -> None:
    watched = Watched()
    watched.over(100.0, HOME)
    assert watched.over(10.0, FALLBACK) == []
    assert watched.over(90_000.0, FALLBACK, every=60.0) == ["alias_fallback"]
    assert watched.last.text == "alias w is on a fallback: b serves it; a is down (connection refused)"
    assert watched.over(100.0, HOME) == ["alias_back"]
    assert watched.last.text == "alias w is back: a serves it, after 25 h 0 min; meanwhile b served"


def test_a_fallback_of_seconds_is_not_told() -> None:
    watched = Watched()
    for _ in range(50):
        watched.over(8.0, FALLBACK)
        watched.over(4.0, HOME)
    assert watched.told == []


def test_a_cloud_is_told_hourly() -> None:
    watched = Watched()
    assert watched.over(3 * 3600.0, CLOUD, every=10.0) == ["alias_cloud"] * 3
    assert watched.told[0].text == "alias w is on a cloud, its prompts leave the LAN: c serves it; a is down; b is down"
    assert watched.told[1].text.startswith(
        "alias w is still on a cloud, its prompts leave the LAN (for 60 min): c serves it"
    )
    assert [later.at - first.at for first, later in pairwise(watched.told)] == [3600.0] * 2
    watched.over(3600.0, CLOUD, every=10.0, usd={"w": 0.314})
    assert ": c serves it, 0.31 USD so far; a is down" in watched.last.text


def test_nothing_left_is_told_every_quarter_of_an_hour() -> None:
    watched = Watched()
    assert watched.over(3600.0, NOTHING, every=10.0) == ["alias_nothing"] * 4
    assert watched.told[0].text == "alias w has nothing left: a is down; b is down"
    assert watched.last.text.startswith("alias w still has nothing left (for 45 min)")
    assert watched.over(100.0, HOME) == ["alias_back"]


def test_every_step_down_and_up_is_told() -> None:
    watched = Watched()
    kinds = [k for view in (FALLBACK, CLOUD, NOTHING, CLOUD, HOME) for k in watched.over(100.0, view)]
    assert kinds == ["alias_fallback", "alias_cloud", "alias_nothing", "alias_cloud", "alias_back"]


def test_one_that_wavers_between_two_kinds_of_trouble_is_told_all_the_same() -> None:
    watched = Watched()
    kinds = [k for _ in range(3) for view in (FALLBACK, NOTHING) for k in watched.over(4.0, view)]
    assert len(kinds) == 1


def test_an_alias_whose_backends_are_parked_is_no_trouble() -> None:
    watched = Watched()
    assert watched.over(10_000.0, AliasView("w", "parked"), every=30.0) == []


# -- the rest ---------------------------------------------------------------------------------------------------------


def drifting(*lines: str, state: State = State.READY) -> BackendView:
    return BackendView("a", state, drift=lines)


def test_drift_is_told_once_for_each_key() -> None:
    watched = Watched()
    assert watched.over(100.0, drifting("context: 131072 is declared, it serves 65536")) == ["drift"]
    assert watched.last.text == "a is not what routes.yaml says: context: 131072 is declared, it serves 65536"
    both = drifting("context: 131072 is declared, it serves 32768", "tool_parser: hermes is declared, but ...")
    assert watched.over(100.0, both) == ["drift"]
    assert watched.last.text.endswith("tool_parser: hermes is declared, but ...")


def test_drift_that_a_restart_hid_for_a_while_is_no_news() -> None:
    watched = Watched()
    line = "tool_parser: hermes is declared, but it refused a request with tools"
    watched.over(10.0, drifting(line))
    assert watched.over(50_000.0, drifting(state=State.WARMING), every=60.0) == []
    assert watched.over(3600.0, drifting(), every=60.0) == []
    assert watched.over(10.0, drifting(line)) == []
    assert watched.over(7 * 3600.0, drifting(), every=60.0) == []
    assert watched.over(10.0, drifting(line)) == ["drift"]


def test_a_budget_is_told_at_80_and_at_100_percent_once_a_period() -> None:
    watched = Watched()
    shares = (0.0, 0.5, 0.79, 0.8, 0.95, 0.85, 1.0, 1.2, 0.1, 0.9, 1.3)
    told = [len(watched.over(10.0, budgets={"fireworks": share})) for share in shares]
    assert told == [0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 1]
    assert [alert.text for alert in watched.told[:2]] == [
        "fireworks has used 80% of its budget",
        "fireworks has used 100% of its budget; nothing more is spent until the next period",
    ]


def test_a_budget_that_is_overrun_at_once_is_one_alert() -> None:
    watched = Watched()
    assert watched.over(10.0, budgets={"fireworks": 1.1}) == ["budget"]
    assert "100%" in watched.last.text


def test_an_edit_that_is_not_valid_is_told_and_so_is_its_end() -> None:
    watched = Watched()
    assert watched.over(100.0, refused_edit="routes.yaml:3 nonsense") == ["invalid_edit"]
    assert "routes.yaml:3 nonsense" in watched.last.text
    assert watched.over(100.0, refused_edit="routes.yaml:4 other nonsense") == ["invalid_edit"]
    assert watched.over(100.0) == ["valid_edit"]
    assert watched.over(100.0) == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0 s"), (89.0, "89 s"), (90.0, "2 min"), (3600.0, "60 min"), (7500.0, "2 h 5 min")]
)
def test_how_long_it_lasted(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


# -- whatever happens -------------------------------------------------------------------------------------------------

STATES = st.sampled_from([state for state in State if state is not State.PARKED])  # none runs on demand here
SERVING: dict[str, tuple[str, ...]] = {"home": ("a",), "fallback": ("b",), "cloud": ("c",), "nothing": (), "parked": ()}
COURSES = st.sampled_from(list(SERVING))
DAYS = st.lists(st.tuples(st.floats(0.5, 200.0), STATES, COURSES, st.booleans()), max_size=30)


@given(DAYS)
def test_trouble_and_its_end_take_turns(days: list[tuple[float, State, Any, bool]]) -> None:
    """Nothing is told twice, and every end belongs to something that was told."""
    watched = Watched(Timing(cloud_again=1e9, nothing_again=1e9))
    for seconds, state, course, trial in days:
        watched.over(
            seconds, BackendView("a", state, trial=trial), AliasView("w", course, 0, SERVING[course]), every=5.0
        )
    for name, back in (("a", "backend_back"), ("w", "alias_back")):
        kinds = ["", *(alert.kind for alert in watched.told if alert.name == name)]
        assert all(first != later for first, later in pairwise(kinds))
        assert back not in kinds[:2]


@given(DAYS)
def test_in_the_end_it_is_told_how_it_is(days: list[tuple[float, State, Any, bool]]) -> None:
    watched = Watched()
    for seconds, state, course, trial in days:
        watched.over(
            seconds, BackendView("a", state, trial=trial), AliasView("w", course, 0, SERVING[course]), every=5.0
        )
        told = [alert.kind for alert in watched.told if alert.name == "a"]
        if seconds > 70.0 and state is State.DOWN:
            assert told[-1] == "backend_down"
        if seconds > 70.0 and state in WELL and told:
            assert told[-1] == "backend_back"
        told = [alert.kind for alert in watched.told if alert.name == "w"]
        if seconds > 20.0 and course not in ("home", "parked"):
            assert told[-1] == f"alias_{course}"
        if seconds > 20.0 and course in ("home", "parked") and told:
            assert told[-1] == "alias_back"
