"""The plan of one request: which backends may serve it, in which order, and why the others may not.

A pure function of the snapshot's alias, the fleet's state and the request. A step is left only when no member of it can
serve; a cloud step is entered only for the reasons its alias allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.config.snapshot import Alias
from gateway.fleet import BackendState
from gateway.health.state import State
from gateway.routing.balance import order
from gateway.routing.context import fits, room_needed, surely_fits
from gateway.routing.request import InferenceRequest
from gateway.upstream.engines import ENGINES

# Why a backend is not used -> the word of `cloud_when` (and of x-gateway-routed) it counts as.
KINDS = {
    "down": "down",
    "warming": "down",
    "misconfigured": "down",
    "parked": "down",
    "failed": "down",
    "empty": "empty",  # never a reason to leave the LAN
    "cooldown": "busy",
    "incapable": "incapable",
    "unserved": "incapable",
    "too_long": "too_long",
    "local_only": "local_only",
}
TEMPORARY = frozenset({"down", "warming", "cooldown"})


class Candidate(NamedTuple):
    """A backend to try; `step` counts from 0."""

    state: BackendState
    step: int


class Skip(NamedTuple):
    """A backend not to use. `kind` is a key of KINDS, `reason` is for people."""

    state: BackendState
    step: int
    kind: str
    reason: str


@dataclass(slots=True)
class Plan:
    """`candidates` in the order to try them. `met` is filled while they are tried: backend name -> kind of failure."""

    alias: Alias
    candidates: list[Candidate] = field(default_factory=list)
    skipped: list[Skip] = field(default_factory=list)
    met: dict[str, str] = field(default_factory=dict)

    def may_enter(self, candidate: Candidate) -> bool:
        """A local candidate always; a cloud one when every local backend before it is out for a reason that the alias
        allows, or there is none before it."""
        if not candidate.state.backend.cloud:
            return True
        reasons = [KINDS[s.kind] for s in self.skipped if s.step <= candidate.step and not s.state.backend.cloud]
        for earlier in self.candidates:
            if earlier is candidate:
                break
            if not earlier.state.backend.cloud:
                reasons.append(KINDS.get(self.met.get(earlier.state.name, ""), "busy"))
        return all(reason in self.alias.cloud_when for reason in reasons)

    def detour(self, candidate: Candidate) -> tuple[str, str] | None:
        """Why a later step serves: ("fallback", reason) when the first step is unhealthy or has just failed, ("routed",
        too_long | incapable | busy) when it is because of this request. None on the first step."""
        if candidate.step == 0:
            return None
        kinds = [s.kind for s in self.skipped if s.step == 0]
        kinds += [self.met[c.state.name] for c in self.candidates if c.step == 0 and c.state.name in self.met]
        unhealthy = [k for k in kinds if KINDS[k] in ("down", "empty")]
        if unhealthy or not kinds:
            return ("fallback", unhealthy[0] if unhealthy else "down")
        reason = KINDS[kinds[0]]
        return ("routed", "incapable" if reason == "local_only" else reason)


def make_plan(
    alias: Alias,
    states: Mapping[str, BackendState],
    request: InferenceRequest,
    now: float,
    *,
    local_only: bool = False,
    turn: int = 0,
    key: Callable[[], bytes] = bytes,
) -> Plan:
    """Candidates and skips for one request, `now` in the fleet's monotonic seconds."""
    plan = Plan(alias)
    room = room_needed(request, alias.min_max_tokens)
    for index, step in enumerate(alias.steps):
        usable: list[BackendState] = []
        for name in step:
            state = states[name]
            skip = why_not(state, request, room, now, local_only=local_only)
            if skip is None:
                usable.append(state)
            else:
                plan.skipped.append(Skip(state, index, *skip))
        ordered: Sequence[BackendState] = order(usable, alias.balance, turn, key, now)
        plan.candidates.extend(Candidate(state, index) for state in ordered)
    return plan


def why_not(
    state: BackendState, request: InferenceRequest, room: int, now: float, *, local_only: bool
) -> tuple[str, str] | None:
    """(kind, reason) when this backend cannot serve this request, with `room` tokens of answer, now; None = it can."""
    backend = state.backend
    if backend.cloud and local_only:
        return "local_only", "is outside the LAN, and this request may not leave it"
    engine = ENGINES.get(backend.engine)
    if engine is None or request.endpoint.name not in engine.endpoints:
        return "unserved", f"engine {backend.engine} does not serve {request.endpoint.path}"
    health = state.health
    if health.state is not State.READY and not health.usable(now):
        return unavailable(state, now)
    if state.cooldown_until > now:
        return "cooldown", f"asked for a pause of {state.cooldown_until - now:.0f} more seconds"
    picky = state.learned or backend.vision is False or backend.audio is False
    if (request.tools or picky) and (lack := incapable(state, request, now)) is not None:
        return lack
    if not fits_window(state, request, room):
        return "too_long", f"the prompt has about {tokens(state, request)} tokens, its window {state.context}"
    return None


def tokens(state: BackendState, request: InferenceRequest) -> int:
    """Prompt tokens, probably."""
    return state.ratio.estimate(request.prompt_bytes, request.images).mid


def fits_window(state: BackendState, request: InferenceRequest, room: int) -> bool:
    """Do the prompt and `room` tokens of answer fit the window? Pictures are only looked for when it seems not."""
    if state.context is None or surely_fits(request.prompt_bytes, room, state.context):
        return True
    cuts = ENGINES[state.backend.engine].cuts_silently
    for _ in range(2):
        estimate = state.ratio.estimate(request.prompt_bytes, request.images)
        if fits(estimate, room, state.context, cuts_silently=cuts):
            return True
        if request.media_measured:
            return False
        request.measure_media()
    return False


def unavailable(state: BackendState, now: float) -> tuple[str, str]:
    """(kind, reason) of a backend whose health forbids its use."""
    health = state.health
    if health.state is State.MISCONFIGURED:
        return "misconfigured", f"is misconfigured: {health.reason}"
    if health.state is State.PARKED:
        return "parked", "is parked (run: on_demand)"
    if health.starting(now):
        return "warming", f"is starting or has just gone ({health.reason})"
    return "down", f"is down ({health.reason})"


def incapable(state: BackendState, request: InferenceRequest, now: float) -> tuple[str, str] | None:
    """(kind, reason) when the request needs what this backend is declared or was learned not to have."""
    backend = state.backend
    if state.lacks("endpoint:" + request.endpoint.name, now):
        return "unserved", f"does not serve {request.endpoint.path} (it answered 404)"
    if request.tools and request.tool_choice != "none":
        if request.tool_choice != "auto" and not ENGINES[backend.engine].calls_on_demand:
            return "incapable", f"cannot be made to call a tool: engine {backend.engine} ignores tool_choice"
        if backend.tool_parser == "none":
            return "incapable", "has no tool parser: start vLLM with --enable-auto-tool-choice --tool-call-parser"
        if state.lacks("tools", now) or (backend.auto_tools is False and request.tool_choice == "auto"):
            return "incapable", "cannot call tools: start vLLM with --enable-auto-tool-choice and --tool-call-parser"
    no_images = backend.vision is False or state.lacks("images", now)
    no_audio = backend.audio is False or state.lacks("audio", now)
    if no_images or no_audio:
        request.measure_media()
        if request.images and no_images:
            return "incapable", "takes no images (it serves a text model)"
        if request.audio and no_audio:
            return "incapable", "takes no audio (it serves a text model)"
    return None
