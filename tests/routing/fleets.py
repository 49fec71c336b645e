"""Fleets of every kind, made up by Hypothesis: what is declared of each backend, how it is, and the alias before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from hypothesis import strategies as st

from gateway.config.snapshot import Alias, Backend, CloudWhen, HealthSettings, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, Endpoint
from gateway.domain.health_machine import Health
from gateway.domain.health_state import State
from gateway.domain.request import InferenceRequest
from tests.routing.parts import NOW, request

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
HELLO = {"role": "user", "content": "hello"}
PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://h/p.png"}}]}
SOUND = {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}]}
BODIES: Mapping[str, tuple[Endpoint, Mapping[str, Any]]] = {
    "chat": (CHAT, {"messages": [HELLO]}),
    "tools": (CHAT, {"messages": [HELLO], "tools": TOOLS}),
    "required": (CHAT, {"messages": [HELLO], "tools": TOOLS, "tool_choice": "required"}),
    "named": (
        CHAT,
        {"messages": [HELLO], "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ),
    "json_schema": (
        CHAT,
        {"messages": [HELLO], "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}},
    ),
    "images": (CHAT, {"messages": [PICTURE]}),
    "audio": (CHAT, {"messages": [SOUND]}),
    "thinking on": (CHAT, {"messages": [HELLO], "think": True}),
    "thinking off": (CHAT, {"messages": [HELLO], "think": False}),
    "completions": (COMPLETIONS, {"prompt": "hello"}),
    "embeddings": (EMBEDDINGS, {"input": "hello"}),
}
"""What clients ask, by what it needs."""


def asked(need: str) -> InferenceRequest:
    endpoint, body = BODIES[need]
    return request(endpoint, **body)


class Case(NamedTuple):
    snapshot: Snapshot
    states: dict[str, BackendState]

    @property
    def alias(self) -> Alias:
        return self.snapshot.aliases["alias"]


MODELS = (None, "Qwen3.6-35B-A3B", "Qwen3-Next-80B-A3B-Thinking", "Qwen3-4B-Instruct-2507", "gemma-4-31B-it", "x")
PARSERS = (None, "none", "hermes", "gemma4", "pythonic", "qwen3_xml", "unheard_of")
CLOUD_WHEN: tuple[CloudWhen, ...] = ("down", "too_long", "incapable", "busy")
LEARNED = ("tools", "tool_parser", "images", "audio", "thinking")

_maybe = st.sampled_from((None, True, False))


@st.composite
def declared(draw: st.DrawFn, name: str, *, engines: tuple[str, ...]) -> Backend:
    engine: Any = draw(st.sampled_from(engines))
    cloud = engine == "litellm" or draw(st.integers(0, 3)) == 0
    return Backend(
        name,
        engine=engine,
        url=f"http://{name}.local:8000",
        cloud=cloud,
        model=draw(st.sampled_from(MODELS)),
        context=draw(st.sampled_from((None, 512, 8192, 32768, 131072))),
        slots=4,
        tool_parser=draw(st.sampled_from(PARSERS)),
        auto_tools=draw(_maybe),
        thinking=draw(st.sampled_from((None, "optional", "always", "never"))),
        vision=draw(_maybe),
        audio=draw(_maybe),
        serves=("speech",) if engine == "http" else (),
        run=draw(st.sampled_from(("always", "always", "on_demand"))),
        health=HealthSettings(every=None if cloud else 5.0),
    )


@st.composite
def health_of(draw: st.DrawFn, backend: Backend) -> Health:
    state = draw(st.sampled_from((State.READY, State.READY, *State)))
    suspect = state is State.SUSPECT
    since = draw(st.sampled_from((0.0, NOW - 1.0)))
    return Health(
        backend.name,
        backend.health,
        on_demand=backend.run == "on_demand",
        state=state,
        reason="why",
        since=since,
        born=since,
        ever_ready=draw(st.booleans()),
        half_open=suspect and draw(st.booleans()),
        trial=draw(st.booleans()),
        retry_at=draw(st.sampled_from((0.0, NOW + 5.0))),
    )


@st.composite
def as_it_is(draw: st.DrawFn, backend: Backend) -> BackendState:
    state = BackendState(backend, None, draw(health_of(backend)))
    if draw(st.integers(0, 4)) == 0:
        state.cooldown_until = NOW + 20.0
    for lack in draw(st.sets(st.sampled_from(LEARNED), max_size=2)):
        state.facts.learn_lack(lack, NOW)
    if draw(st.booleans()):
        state.saw_version(draw(st.sampled_from(("0.11.0", "0.12.0", "0.32.0"))))
    return state


ALL_ENGINES = ("vllm", "openai", "ollama", "litellm")


@st.composite
def cases(draw: st.DrawFn, engines: tuple[str, ...] = ALL_ENGINES) -> Case:
    """Up to five backends in the steps of one alias."""
    names = "abcde"[: draw(st.integers(1, 5))]
    backends = {name: draw(declared(name, engines=engines)) for name in names}
    steps: list[tuple[str, ...]] = []
    for name in names:
        beside = bool(steps) and draw(st.booleans())
        steps.append((*(steps.pop() if beside else ()), name))
    alias = Alias(
        "alias",
        tuple(steps),
        balance=draw(st.sampled_from(("affinity", "least_busy", "round_robin"))),
        cloud_when=tuple(draw(st.permutations(CLOUD_WHEN))[: draw(st.integers(0, 4))]),
        on_unsupported=draw(st.sampled_from(("refuse", "mend", "strip"))),
        thinking=draw(st.sampled_from((None, None, "on", "off"))),
        min_max_tokens=draw(st.sampled_from((None, 4096))),
    )
    states = {name: draw(as_it_is(backend)) for name, backend in backends.items()}
    return Case(Snapshot(backends, {"alias": alias}), states)


def turned(alias: Alias) -> list[tuple[Alias, int]]:
    """The alias with each order that its steps can have, as far as it matters who is first in a step."""
    most = max(len(step) for step in alias.steps)
    return [(replace(alias, balance="round_robin"), turn) for turn in range(most)]
