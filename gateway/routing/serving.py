"""Which backends serve an alias, and why the others do not. `gateway check`, `explain`, `/status`, the page, `/ready`,
`/v1/models`, the alerts and the startup report all show this result. Pure.

This module has no rules of its own. It has the planner (`make_plan`) plan a real or a made-up request, and returns
what the plan contains for each backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

import msgspec

from gateway.config.snapshot import Alias, Backend, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, RERANK, SCORE, Endpoint
from gateway.domain.health_machine import Health
from gateway.domain.health_state import SERVING, State
from gateway.domain.request import InferenceRequest, parse
from gateway.routing.plan import KINDS, OUTSIDE, Candidate, Plan, SkippedBackend, make_plan
from gateway.routing.why_not import STARTS, SkipReason, unavailable

# -- one request ------------------------------------------------------------------------------------------------------


def order_of(plan: Plan) -> tuple[str, ...]:
    """The backends in the order in which they are tried."""
    chain = plan.candidates
    return tuple(c.state.name for i, c in enumerate(chain) if _may_enter(plan, c, chain[:i]))


def _may_enter(plan: Plan, candidate: Candidate, before: Sequence[Candidate]) -> bool:
    """Is this candidate tried when all `before` have failed? (`cloud_when` decides about a cloud.)"""
    if not candidate.state.backend.cloud:
        return True
    failed = {earlier.state.name: "failed" for earlier in before}
    return Plan(plan.alias, [*before, candidate], plan.skipped, failed).may_enter(candidate)


# -- an alias, now ----------------------------------------------------------------------------------------------------

NOT_ENTERED = "cloud_when"  # kind of a Why (not in KINDS): the alias does not allow this cloud to serve
UNHEALTHY = frozenset(kind for kind, counts_as in KINDS.items() if counts_as in ("down", OUTSIDE)) | STARTS


@dataclass(frozen=True, slots=True)
class ChainMember:
    """A backend in the chain of an alias. `why`: why it gets no ordinary requests of the alias; None if it gets them.
    `steady`: False = it gets single requests only, which test whether it is well again."""

    state: BackendState
    step: int
    why: SkipReason | None
    steady: bool


def members_now(alias: Alias, states: Mapping[str, BackendState], now: float) -> list[ChainMember]:
    """The backends of each step, as the planner uses them for an ordinary request. Two reasons are ignored: a pause
    that a backend asked for (429), which is short, and budgets, which are reported elsewhere."""
    chain = {name: _without_pause(states[name], now) for step in alias.steps for name in step}
    plan = _ordinary_plan(alias, chain, now)
    entries: list[Candidate | SkippedBackend] = [*plan.candidates, *plan.skipped]
    by_name = {entry.state.name: entry for entry in entries}
    return [_member(plan, by_name[name], states[name]) for name in chain]


def can_serve(alias: Alias, states: Mapping[str, BackendState], now: float) -> bool:
    """Is there a backend that an ordinary request is sent to now, even if only to test whether it is well again, or
    one that is started for it?"""
    return any(member.why is None or member.why.kind in STARTS for member in members_now(alias, states, now))


def unserved(snapshot: Snapshot) -> list[str]:
    """The aliases that nobody serves though everything that the mode in force contains runs; without the backends' own
    names."""
    states, now = all_ready(snapshot), 0.0
    return [a.name for a in snapshot.aliases.values() if not a.implicit and not can_serve(a, states, now)]


def reason_of(why: SkipReason, state: BackendState, now: float) -> str:
    """Why no ordinary request is sent to this backend: a phrase to follow its name."""
    return f"has too small a window ({state.window(now):,} tokens)" if why.kind == "too_long" else why.reason


def _without_pause(state: BackendState, now: float) -> BackendState:
    if state.cooldown_until <= now:
        return state
    state = copy(state)
    state.cooldown_until = 0.0
    return state


def _member(plan: Plan, entry: Candidate | SkippedBackend, state: BackendState) -> ChainMember:
    why = SkipReason(entry.kind, entry.reason, entry.lacks) if isinstance(entry, SkippedBackend) else None
    if why is None:
        before = [candidate for candidate in plan.candidates if candidate.step < entry.step]
        if not _may_enter(plan, Candidate(state, entry.step), before):
            why = SkipReason(NOT_ENTERED, "may not be entered (cloud_when)")
    return ChainMember(state, entry.step, why, state.health.state in SERVING and not state.health.half_open)


def _ordinary_plan(alias: Alias, states: Mapping[str, BackendState], now: float) -> Plan:
    """The plan of a short request to the first endpoint that some backend serves. Chat is not always that endpoint:
    a chat that was sent to an embeddings alias by mistake teaches that its backends serve no chat, but they do serve
    the alias."""
    if not any(state.traits.endpoints for state in states.values()):
        return _plan_by_health(alias, states, now)
    plans = []
    for endpoint in (CHAT, COMPLETIONS, EMBEDDINGS, RERANK, SCORE):
        plan = make_plan(alias, states, _ordinary_words(endpoint), now)
        out = {skip.kind for skip in plan.skipped}
        if plan.candidates or out - UNHEALTHY - {"unserved"}:
            return plan
        plans.append((plan, out))
    return next((plan for plan, out in plans if out != {"unserved"}), plans[0][0])


def _plan_by_health(alias: Alias, states: Mapping[str, BackendState], now: float) -> Plan:
    """The plan by health alone, for servers that no endpoint of the gateway uses yet (engine http)."""
    plan = Plan(alias)
    for index, step in enumerate(alias.steps):
        for state in map(states.__getitem__, step):
            if state.health.usable(now):
                plan.candidates.append(Candidate(state, index))
            else:
                plan.skipped.append(SkippedBackend(state, index, *unavailable(state, now)))
    return plan


@cache
def _ordinary_words(endpoint: Endpoint) -> InferenceRequest:
    """Made once: the views of all aliases are made anew with every change of a backend."""
    return _few_words(endpoint)


def _few_words(endpoint: Endpoint = CHAT, **more: Any) -> InferenceRequest:
    words = [{"role": "user", "content": "hello"}] if endpoint is CHAT else "hello"
    prompt = dict.fromkeys(endpoint.prompt[:2] if endpoint.pools else endpoint.prompt[:1], words)
    return parse(endpoint, msgspec.json.encode({"model": "alias", **prompt, **more}))


# -- an alias, by routes.yaml alone -----------------------------------------------------------------------------------


class Need(StrEnum):
    """An ability that a request can ask of a backend."""

    CHAT = "chat"
    LONG = "long"  # a prompt that fits only the largest window of the alias
    TOOLS = "tools"
    CALL = "call"  # a required tool call (tool_choice required)
    NAMED_CALL = "named_call"
    JSON_SCHEMA = "json_schema"
    IMAGES = "images"
    AUDIO = "audio"
    THINKING_ON = "thinking_on"
    THINKING_OFF = "thinking_off"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"


_FUNCTION = {"name": "tool", "parameters": {"type": "object", "properties": {}}}
_TOOLS: Mapping[str, Any] = {"tools": [{"type": "function", "function": _FUNCTION}]}
_NAMED = {"type": "function", "function": {"name": "tool"}}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}


def _with_part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"messages": [{"role": "user", "content": [part]}]}


_ASKS: Mapping[Need, Mapping[str, Any]] = {
    Need.CHAT: {},
    Need.TOOLS: _TOOLS,
    Need.CALL: {**_TOOLS, "tool_choice": "required"},
    Need.NAMED_CALL: {**_TOOLS, "tool_choice": _NAMED},
    Need.JSON_SCHEMA: {"response_format": _SCHEMA},
    Need.IMAGES: _with_part({"type": "image_url", "image_url": {"url": "http://localhost/picture.png"}}),
    Need.AUDIO: _with_part({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}),
    Need.THINKING_ON: {"chat_template_kwargs": {"enable_thinking": True}},
    Need.THINKING_OFF: {"chat_template_kwargs": {"enable_thinking": False}},
}


def request_with(need: Need) -> InferenceRequest:
    """A short request with this one need."""
    if need in (Need.COMPLETIONS, Need.EMBEDDINGS):
        return _few_words(COMPLETIONS if need is Need.COMPLETIONS else EMBEDDINGS)
    return _few_words(**_ASKS.get(need, {}))


def with_tokens(request: InferenceRequest, tokens: int, states: Mapping[str, BackendState]) -> InferenceRequest:
    """The same request, with a prompt that counts as `tokens` tokens on every backend."""
    request.exact = dict.fromkeys(states, tokens)
    return request


def all_ready(snapshot: Snapshot) -> dict[str, BackendState]:
    """The fleet as routes.yaml alone describes it: every backend is ready, or parked by the mode in force, and nothing
    was learned."""
    return {name: _ready(backend) for name, backend in snapshot.backends.items()}


def _ready(backend: Backend) -> BackendState:
    health = Health(backend.name, backend.health, state=State.READY)
    if backend.parked is not None:
        health.park(backend.parked, 0.0)
    return BackendState(backend, None, health)
