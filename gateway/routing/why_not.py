"""Why a backend cannot serve a request: a kind, and a text for people, with the launch flag that is missing. Pure."""

from __future__ import annotations

from typing import NamedTuple

from gateway.config.snapshot import Backend
from gateway.domain.backend import BackendState
from gateway.domain.capabilities import PARSER_FREE, Capabilities
from gateway.domain.health_state import State
from gateway.domain.reason import kind_of
from gateway.domain.request import NO_MEDIA, InferenceRequest
from gateway.launch.families import family_of
from gateway.routing.needs import NO_NEEDS, Lack, Needs, lacking, with_media
from gateway.routing.window import fits_window, tokens

ON_REQUEST = "on_request"  # kind of a backend that is parked, and that this request may have started
STARTING = "starting"  # kind of a backend that is being started for a request
STARTS = frozenset({ON_REQUEST, STARTING})


class SkipReason(NamedTuple):
    """Why a backend is not used. `kind` is a key of KINDS, `reason` is for people; `lacks` with kind incapable.
    `wait`: seconds after which the reason may be gone; None if not known."""

    kind: str
    reason: str
    lacks: tuple[Lack, ...] = ()
    wait: float | None = None


def why_not(
    state: BackendState, request: InferenceRequest, needs: Needs, room: int, now: float, *, local_only: bool
) -> SkipReason | None:
    """Why this backend cannot serve this request, with `room` tokens of answer, now; None if it can."""
    backend = state.backend
    if backend.cloud and local_only:
        return SkipReason("local_only", "is outside the LAN, and this request may not leave it")
    endpoint = request.endpoint.name
    if endpoint not in state.traits.endpoints and endpoint not in backend.serves:
        if backend.serves:
            return SkipReason(
                "unserved", f"does not serve {request.endpoint.path} (serves: {', '.join(backend.serves)})"
            )
        return SkipReason("unserved", f"engine {state.server} does not serve {request.endpoint.path}")
    health = state.health
    away: SkipReason | None = None
    if state.absent:
        return SkipReason("misconfigured", state.absent)
    if health.state is not State.READY and not health.usable(now):
        away = SkipReason(*unavailable(state, now))
        if away.kind not in STARTS:  # a start has to be of use: what follows is asked of it too
            return away
    if state.cooldown_until > now:
        return SkipReason("cooldown", f"asked for a pause of {state.cooldown_until - now:.0f} more seconds")
    asked = needs is not NO_NEEDS or bool(state.facts.lacks)
    if not asked and declines_media(backend):
        asked = request.media is not NO_MEDIA
    if asked and (lack := incapable(state, request, needs, now)) is not None:
        return lack
    return away if fits_window(state, request, room, now) else too_long(state, request, now)


def declines_media(backend: Backend) -> bool:
    """Does routes.yaml say that it takes no pictures, no sound or no files? Then the prompt is searched for them."""
    return backend.vision is False or backend.audio is False or backend.pdf is False


def incapable(state: BackendState, request: InferenceRequest, needs: Needs, now: float) -> SkipReason | None:
    """Why this backend cannot do what the request needs; None if it can, or it is not known that it cannot."""
    if state.facts.is_lacking("endpoint:" + request.endpoint.name, now):
        return SkipReason("unserved", f"does not serve {request.endpoint.path} (it answered 404)")
    able = state.capabilities(now)
    if able.images is False or able.audio is False or able.sources.get("pdf") in ("declared", "learned"):
        needs = with_media(needs, request)
    lacks = lacking(needs, able)
    if not lacks:
        return None
    return SkipReason("incapable", "; ".join(describe_lack(lack, needs, state, able) for lack in lacks), lacks)


def unavailable(state: BackendState, now: float) -> tuple[str, str]:
    """(kind, reason) of a backend whose health forbids its use."""
    health = state.health
    reason = kind_of(health.reason)  # without the backend's own error text, which was meant for another client
    if health.state is State.MISCONFIGURED:
        return "misconfigured", f"is misconfigured: {reason}"
    if health.announced:
        return "warming", f"is to be used soon, a switch of the mode is under way ({health.reason})"
    if health.outside:
        return "outside", f"is parked ({health.reason})"
    if health.startable:
        return ON_REQUEST, "is parked, and starts on request"
    if health.state is State.PARKED:
        return "parked", f"is parked ({'asleep' if health.asleep else 'run: on_demand'})"
    if health.summoned and health.state is State.WARMING:
        return STARTING, f"is starting ({reason})"
    if health.state is State.DRAINING:
        return "draining", f"is draining ({reason})"
    if health.state is State.SUSPECT:
        return "down", f"is on trial, and one request or canary is finding out ({reason})"
    if health.starting(now):
        return "warming", f"is starting or has just gone ({reason})"
    return "down", f"is down ({reason})"


def too_long(state: BackendState, request: InferenceRequest, now: float) -> SkipReason:
    return SkipReason(
        "too_long", f"the prompt has about {tokens(state, request)} tokens, its window {state.window(now)}"
    )


# -- lacks ------------------------------------------------------------------------------------------------------------


def describe_lack(lack: Lack, needs: Needs, state: BackendState, able: Capabilities) -> str:
    """The lack as a phrase to follow the backend's name."""
    if lack == "tools":
        return _tools(state)
    if lack == "tool_choice":
        return _tool_choice(needs, state, able)
    if lack == "thinking":
        return _thinking(needs, state, able)
    if lack == "json_schema":
        if able.sources["json_schema"] == "engine":
            return f"cannot be made to keep to a JSON schema: {state.server} ignores response_format"
        return "did not keep to a JSON schema when it was checked"
    if lack == "logprobs":
        return f"has no logprobs to give: it is a {state.server}"
    if lack == "pdf":
        return "takes no PDF: send its text, or ask a backend that reads PDFs (pdf: true)"
    if lack == "continues":
        return f"does not continue a text that the client began: a {state.server} begins its answer anew"
    if lack == "hosted":
        return "runs no tools of its own and reads no files (a server that does: responses: hosted in routes.yaml)"
    flags = "--language-model-only or --limit-mm-per-prompt" if state.traits.launch_flags else ""
    started = f", or was started with {flags}" if flags else ""
    return f"takes no {lack} (it serves a text model{started})"


def parser_flags(state: BackendState) -> str:
    """The flags that a vLLM with this model needs to call tools."""
    backend = state.backend
    family = family_of(state.checkpoint)
    parser = backend.tool_parser if backend.tool_parser not in (None, "none") else None
    parser = parser or (family.tool_parser if family is not None else None) or "PARSER"
    return f"--enable-auto-tool-choice --tool-call-parser {parser}"


def _tools(state: BackendState) -> str:
    if not state.traits.launch_flags:
        return "cannot call tools: serve a model that can"
    return f"cannot call tools: start vLLM with {parser_flags(state)}"


def _tool_choice(needs: Needs, state: BackendState, able: Capabilities) -> str:
    source = able.sources["named" if needs.tools == "named" else "required"]
    if source == "engine":
        return f"cannot be made to call a tool: engine {state.server} ignores tool_choice"
    if source == "observed":
        return "did not make a required tool call when it was checked"
    if not state.traits.launch_flags:
        return "cannot be made to call a tool (tool_parser: none)"
    since = ".".join(map(str, PARSER_FREE))
    return f"cannot be made to call a tool: start vLLM (since {since}) with {parser_flags(state)}"


def _thinking(needs: Needs, state: BackendState, able: Capabilities) -> str:
    source = able.sources["thinking"]
    what = "cannot think" if needs.thinking == "on" else "cannot be kept from thinking"
    if source == "declared":
        return f"{what} (thinking: {state.backend.thinking} in routes.yaml)"
    if source == "family":
        family = family_of(state.checkpoint)
        return f"{what}: its model ({family.name if family else state.model}) has no switch for it"
    if source == "observed" and needs.thinking == "on" and state.traits.launch_flags:
        family = family_of(state.checkpoint)
        parser = (family.reasoning_parser if family else None) or "PARSER"
        return f"{what}: it did not when it was checked; start vLLM with --reasoning-parser {parser}"
    if source == "observed":
        return f"{what}: it did not obey when it was checked; is thinking_switch in routes.yaml right?"
    return f"{what}: its model refused to"
