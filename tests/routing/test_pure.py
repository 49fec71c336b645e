"""Planning, capabilities and explaining are pure: they read no clock, write to none of their arguments, and the same
input gives the same result."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from gateway.apps.explaining.explain import explain
from gateway.config.snapshot import Alias, Client
from gateway.domain.backend import BackendState
from gateway.domain.drift import drift
from gateway.domain.endpoints import COMPLETIONS
from gateway.domain.facts import Observation, RefusedWindow
from gateway.domain.progress import Sample
from gateway.domain.request import InferenceRequest, Refusal
from gateway.domain.tokens import room_needed
from gateway.routing.needs import needs_of, with_media
from gateway.routing.plan import Plan, make_plan, with_forced_call
from gateway.routing.refusal import refusal
from gateway.routing.window import fits_window, known_tokens, near_limit, prompt_estimate
from tests.routing.parts import NOW, Condition, backend, request

T = TypeVar("T")
CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")
SMALL = 2000  # tokens: a window that the larger prompts do not fit
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 30_000}}
SOUND = {"type": "input_audio", "input_audio": {"data": "A" * 3000, "format": "wav"}}
LACKS = ("tools", "tool_parser", "images", "audio", "thinking", "endpoint:chat", "reasoning_split")
CHECKS = ("tool_auto", "tool_required", "tool_named", "json_schema", "thinking_on", "thinking_off")


# -- holding it -------------------------------------------------------------------------------------------------------


@contextmanager
def no_clock() -> Iterator[None]:
    """Whoever reads a clock in here raises. (Not the garbage collector's callbacks: it does not run.)"""

    def refuse() -> float:
        raise AssertionError("a clock was read")

    kept = {name: getattr(time, name) for name in CLOCKS}
    gc.disable()
    try:
        for name in CLOCKS:
            setattr(time, name, refuse)
        yield
    finally:
        for name, clock in kept.items():
            setattr(time, name, clock)
        gc.enable()


def frozen(value: Any, seen: frozenset[int] = frozenset()) -> Any:
    """All that a value consists of, private attributes included, as something that compares. What a dataclass leaves
    out of comparing (the request's memo of its media) is worked out from the rest."""
    if id(value) in seen:
        return "itself"
    seen |= {id(value)}
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, Mapping):
        return [(frozen(k, seen), frozen(v, seen)) for k, v in value.items()]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *(frozen(item, seen) for item in value)]
    if is_dataclass(value):
        return [(f.name, frozen(getattr(value, f.name), seen)) for f in fields(value) if f.compare]
    if slots := getattr(type(value), "__slots__", None):
        return [(name, frozen(getattr(value, name), seen)) for name in slots]
    return value


def held(work: Callable[[], T], *arguments: Any) -> T:
    """The result of work that leaves its arguments as they are, needs no clock, and does the same again."""
    before = [frozen(argument) for argument in arguments]
    with no_clock():
        first = work()
    assert [frozen(argument) for argument in arguments] == before
    with no_clock():
        assert shown(work()) == shown(first)
    return first


def shown(result: Any) -> Any:
    """A plan by the names of its backends: it holds their records."""
    if isinstance(result, Plan):
        skipped = [(s.state.name, *s[1:]) for s in result.skipped]
        return [(c.state.name, *c[1:]) for c in result.candidates], skipped, result.outcomes
    return frozen(result)


def test_what_holds_it_sees_writes_and_clocks() -> None:
    state = backend("a")
    before = frozen(state)
    state.facts.learn_lack("tools", NOW)
    assert frozen(state) != before
    caught = ""
    try:
        with no_clock():
            time.monotonic()
    except AssertionError as error:
        caught = str(error)
    assert caught
    assert time.monotonic() > 0


# -- what is put to it ------------------------------------------------------------------------------------------------

moments = st.sampled_from([NOW - 100.0, NOW, NOW + 100.0])  # when a fact expires


@st.composite
def states(draw: st.DrawFn, name: str) -> BackendState:
    conditions: list[Condition] = ["ok", "ok", "suspect", "unknown", "down", "warming", "parked", "cooldown"]
    maybe = st.sampled_from([None, True, False])
    state = backend(
        name,
        draw(st.sampled_from(conditions)),
        inflight=draw(st.integers(0, 5)),
        engine=draw(st.sampled_from(["vllm", "vllm", "ollama", "openai", "http"])),
        context=draw(st.sampled_from([None, SMALL, 131_072])),
        tool_parser=draw(st.sampled_from([None, "none", "hermes", "pythonic"])),
        vision=draw(maybe),
        audio=draw(maybe),
        thinking=draw(st.sampled_from([None, "optional", "always", "never"])),
        cloud=draw(st.booleans()),
    )
    state.saw_version(draw(st.sampled_from([None, "0.11.0", "0.32.0"])))
    state.saw_model(draw(st.sampled_from([None, "Qwen3.6-35B", "gemma-3"])), draw(st.sampled_from([None, SMALL])))
    for lack in draw(st.lists(st.sampled_from(LACKS), unique=True, max_size=4)):
        state.facts.believe_lack(lack, draw(moments), "r")
    found = draw(st.dictionaries(st.sampled_from(CHECKS), st.sampled_from(["yes", "mended", "no"]), max_size=3))
    state.facts.observe({check: Observation(result, "") for check, result in found.items()})  # type: ignore[arg-type]  # of these
    if draw(st.booleans()):
        state.facts.refused_window = RefusedWindow(draw(st.integers(100, 200_000)), draw(moments))
    if draw(st.booleans()):
        state.ratio.learn(30_000, 10_000, draw(st.sampled_from(["", "bob"])))
        state.progress.add(Sample(NOW, running=2.0))
    return state


@st.composite
def requests(draw: st.DrawFn) -> InferenceRequest:
    parts: list[Any] = [{"type": "text", "text": "word " * draw(st.sampled_from([1, 500, 3000]))}]
    parts += draw(st.lists(st.sampled_from([PICTURE, SOUND]), max_size=2))
    body: dict[str, Any] = {"messages": [{"role": "user", "content": parts}]}
    if draw(st.booleans()):
        body["tools"] = [{"type": "function", "function": {"name": "f"}}]
        body["tool_choice"] = draw(st.sampled_from(["auto", "none", "required"]))
    if draw(st.booleans()):
        body["reasoning_effort"] = draw(st.sampled_from(["none", "high"]))
    if draw(st.booleans()):
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": {}}}
    if draw(st.booleans()):
        body["max_tokens"] = draw(st.integers(1, 5000))
    asked = request(**body) if draw(st.integers(0, 9)) else request(COMPLETIONS, prompt="x" * 100)
    asked.sender = draw(st.sampled_from(["", "bob"]))
    if draw(st.integers(0, 3)) == 0:
        asked.exact["a"] = draw(st.integers(1, 5000))
    if draw(st.integers(0, 3)) == 0:
        asked.refused = {"b": Refusal(draw(st.sampled_from([None, 1500])), draw(st.integers(0, 3000)))}
    if draw(st.booleans()):
        assert asked.media  # whether somebody has looked before makes no difference
    return asked


aliases = st.builds(
    Alias,
    st.just("alias"),
    st.sampled_from([(("a",), ("b",), ("c",)), (("a", "b", "c"),), (("a", "b"), ("c",))]),
    balance=st.sampled_from(["affinity", "least_busy", "round_robin"]),
    cloud_when=st.sampled_from([(), ("down",), ("down", "too_long", "incapable", "busy")]),
    on_unsupported=st.sampled_from(["refuse", "mend", "strip"]),
    thinking=st.sampled_from([None, "on", "off"]),
    min_max_tokens=st.sampled_from([None, 1000]),
)
clients = st.sampled_from([None, Client("bob"), Client("bob", local_only=True), Client("bob", on_unsupported="mend")])
fleets = st.tuples(states("a"), states("b"), states("c"))
often = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@often
@given(aliases, fleets, requests(), clients, st.sampled_from([None, "mend", "strip"]))
def test_planning(
    alias: Alias, members: tuple[BackendState, ...], asked: InferenceRequest, client: Client | None, resort: Any
) -> None:
    fleet = {state.name: state for state in members}
    local = client is not None and client.local_only

    def plan() -> Plan:
        return make_plan(alias, fleet, asked, NOW, local_only=local, client=client, resort=resort, turn=1)

    made = held(plan, alias, fleet, asked, client)
    for candidate in made.candidates:
        held(lambda c=candidate: with_forced_call(c, asked, NOW), candidate, asked)  # type: ignore[misc]  # binds it
    held(lambda: refusal(made, [], asked, NOW).message, made, asked)


@often
@given(aliases, fleets, requests(), clients)
def test_explaining(
    alias: Alias, members: tuple[BackendState, ...], asked: InferenceRequest, client: Client | None
) -> None:
    fleet = {state.name: state for state in members}
    held(lambda: explain(alias, fleet, asked, NOW, client=client), alias, fleet, asked, client)


@often
@given(aliases, states("a"), requests(), clients)
def test_needs_capabilities_and_windows(
    alias: Alias, state: BackendState, asked: InferenceRequest, client: Client | None
) -> None:
    room = room_needed(asked, alias.min_max_tokens)

    def everything() -> list[object]:
        return [
            state.capabilities(NOW),
            state.window(NOW),
            drift(state, NOW),
            with_media(needs_of(asked, alias, client), asked),
            fits_window(state, asked, room, NOW),
            near_limit(state, asked, room, NOW),
            prompt_estimate(state, asked),
            asked.media,
        ]

    held(everything, alias, state, asked, client)


@often
@given(aliases, fleets, requests())
def test_that_somebody_looked_for_media_before_changes_no_plan(
    alias: Alias, members: tuple[BackendState, ...], asked: InferenceRequest
) -> None:
    fleet = {state.name: state for state in members}
    asked._media = None
    fresh = shown(make_plan(alias, fleet, asked, NOW))
    assert asked.media == asked.known_media
    assert shown(make_plan(alias, fleet, asked, NOW)) == fresh


def test_media_are_not_looked_for_where_they_can_change_nothing() -> None:
    wide = {"a": backend("a", context=131_072)}
    asked = request(messages=[{"role": "user", "content": [PICTURE]}])
    make_plan(Alias("alias", (("a",),)), wide, asked, NOW)
    assert known_tokens(wide["a"], asked) > 5000, "the picture counts as text: nobody has looked"
    assert prompt_estimate(wide["a"], asked).mid < 2000
