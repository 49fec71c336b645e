"""Which backends serve one request and why the others do not, as data: the content of `gateway explain`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from gateway.config.snapshot import Alias, Client, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.drift import drift
from gateway.domain.endpoints import ENDPOINTS
from gateway.domain.health_state import StartDecision
from gateway.domain.request import LIMIT_MOST, InferenceRequest, parse
from gateway.domain.tokens import room_needed
from gateway.errors import GatewayError, model_not_found
from gateway.launch.families import family_of
from gateway.routing.needs import Adaptation, Resort, needs_of, resort_of, with_media
from gateway.routing.plan import Candidate, DecidesStart, OverBudget, Plan, make_plan
from gateway.routing.refusal import refusal
from gateway.routing.serving import NOT_ENTERED, Need, order_of, request_with, with_tokens
from gateway.routing.why_not import STARTING, STARTS
from gateway.routing.window import near_limit, prompt_estimate

_SHOWN = ("tools", "required", "named", "json_schema", "images", "audio", "pdf", "continues", "thinking", "switch")


def explain_asked(
    snapshot: Snapshot,
    states: Mapping[str, BackendState],
    asked: Mapping[str, Any],
    now: float,
    read: Callable[[str, Any], InferenceRequest],
    *,
    over_budget: Callable[[Snapshot, Client | None], OverBudget | None] = lambda *_: None,
    decides_start: DecidesStart | None = None,
) -> dict[str, Any]:
    """`asked`: `{"alias", "request": {...}}` or `{"alias", "tools": bool, "tokens": N}`; optionally `"client"`,
    whose rules apply. `read` makes a request of an alias and a decoded body: `read_request`, or one that knows more
    APIs. `over_budget` returns the budget check of a client (`Accounts.over_budget`). Raises `model_not_found`,
    `invalid_request_body`."""
    name, tokens, client = asked.get("alias"), asked.get("tokens"), asked.get("client")
    if not isinstance(name, str):
        raise GatewayError("invalid_request_body", "`alias` is missing or not a string.", param="alias")
    alias = snapshot.resolve(name)
    if alias is None:
        raise model_not_found(name, list(snapshot.aliases))
    if tokens is not None and (type(tokens) is not int or not 0 <= tokens <= LIMIT_MOST):
        raise GatewayError("invalid_request_body", "`tokens` must be a whole number, 0 or more.", param="tokens")
    if client is not None and (not isinstance(client, str) or client not in snapshot.clients):
        raise GatewayError("invalid_request_body", f"There is no client '{client}' in routes.yaml.", param="client")
    if asked.get("request") is not None:
        request = read(name, asked["request"])
    else:
        request = request_with(Need.TOOLS if asked.get("tools") is True else Need.CHAT)
        if tokens is not None:
            with_tokens(request, tokens, states)
    who = snapshot.clients[client] if client is not None else None
    spent = over_budget(snapshot, who)
    return explain(alias, states, request, now, client=who, over_budget=spent, decides_start=decides_start)


def read_request(alias: str, body: Any) -> InferenceRequest:
    """A request to `alias` with this body (decoded JSON) of OpenAI's API. There is no path: the field of the prompt
    decides the endpoint. Raises `invalid_request_body`."""
    if not isinstance(body, dict):
        raise GatewayError("invalid_request_body", "The request must be a JSON object.", param="request")
    endpoint = next((one for one in ENDPOINTS if one.prompt and one.prompt[0] in body), ENDPOINTS[0])
    return parse(endpoint, msgspec.json.encode({**body, "model": alias}))


def explain(
    alias: Alias,
    states: Mapping[str, BackendState],
    request: InferenceRequest,
    now: float,
    *,
    client: Client | None = None,
    over_budget: OverBudget | None = None,
    decides_start: DecidesStart | None = None,
) -> dict[str, Any]:
    """`{alias, ask_all, request, served, order, steps: [{step, backends: [...]}], resort, start, error}`: what the
    gateway would do with this request now. `order`: the backends that may be tried, in order; with `ask_all` true,
    those that are asked at the same time. `resort`: the mode of `on_unsupported` if one is needed. `start`: what it
    would have started. `error`: the client's error when no backend can serve."""
    request = replace(request, sender=client.name if client is not None else "")
    local_only = client is not None and client.local_only

    def planned(mode: Resort | None) -> Plan:
        return make_plan(
            alias, states, request, now, local_only=local_only, client=client, resort=mode,
            over_budget=over_budget, refuses_start=decides_start,
        )  # fmt: skip

    plan, resort = planned(None), None
    order = order_of(plan)
    if request.tools and not order and (mode := resort_of(alias, client)) is not None:
        last = planned(mode)
        if found := order_of(last):
            plan, order, resort = last, found, mode
    start = _start(plan, order, client, decides_start)
    error = None if order or start is not None else refusal(plan, [], request, now)
    return {
        "alias": alias.name,
        "ask_all": bool(alias.ask_all),
        "request": _request(request, alias, client),
        "served": error is None,
        "order": sorted(order, key=alias.ask_all.index) if alias.ask_all else list(order),
        "resort": resort,
        "steps": [
            {"step": index + 1, "backends": [_backend(plan, order, states[name], request, now) for name in step]}
            for index, step in enumerate(alias.steps)
        ],
        "start": start,
        "error": None if error is None else {"status": error.status, "code": error.code, "message": error.message},
    }


def _start(
    plan: Plan, order: Sequence[str], client: Client | None, decides: DecidesStart | None
) -> dict[str, Any] | None:
    """`{backend, begun, stops: {backend: seconds idle}, notes, meanwhile}`: the start that this request would cause, or
    join (`begun`), and the backend that would serve it meanwhile; None if it would wait. None as a whole: there is no
    such start."""
    first = next((c.step for c in plan.candidates if c.state.name in order), None)
    starts = [skip for skip in plan.skipped if skip.kind in STARTS and (first is None or skip.step < first)]
    begun = next((skip for skip in starts if skip.kind == STARTING), None)
    skip = begun or next(iter(starts), None)
    if skip is None or decides is None:
        return None
    decision = StartDecision() if begun is not None else decides(skip.state, client, plan.alias)
    return {
        "backend": skip.state.name,
        "begun": begun is not None,
        "stops": {name: round(idle, 3) for name, idle in decision.stops.items()},
        "notes": list(decision.notes),
        "meanwhile": order[0] if order else None,
    }


def _request(request: InferenceRequest, alias: Alias, client: Client | None) -> dict[str, Any]:
    needs = with_media(needs_of(request, alias, client), request)
    return {
        "endpoint": request.endpoint.name,
        "tools": needs.tools,
        "json_schema": needs.json_schema,
        "images": needs.images,
        "audio": needs.audio,
        "pdf": needs.pdf,
        "continues": needs.continues,
        "thinking": needs.thinking,
        "thinking_is_a_wish": needs.wish,
        "room": room_needed(request, alias.min_max_tokens),
    }


def _backend(
    plan: Plan, order: Sequence[str], state: BackendState, request: InferenceRequest, now: float
) -> dict[str, Any]:
    room = room_needed(request, plan.alias.min_max_tokens)
    estimate = prompt_estimate(state, request)
    able, window = state.capabilities(now), state.window(now)
    family = family_of(state.checkpoint)
    return {
        "backend": state.name,
        **_verdict(plan, order, state),
        "engine": state.backend.engine,
        "server": state.server,
        "front_end": state.reported.front_end,
        "url": state.backend.url,
        "cloud": state.backend.cloud,
        "state": state.health.state.value,
        "model": state.model,
        "family": family.name if family is not None else None,
        "version": state.reported.version,
        "window": window,
        "prompt": {"at_least": estimate.low, "probably": estimate.mid, "at_most": estimate.high},
        "left": None if window is None else max(0, window - estimate.mid),
        "counted": near_limit(state, request, room, now),
        "inflight": state.inflight,
        "slots": state.known_slots,
        "capabilities": {
            name: {"value": getattr(able, name), "from": able.sources.get(name, "unknown")} for name in _SHOWN
        },
        "drift": list(map(str, drift(state, now))),
    }


def _verdict(plan: Plan, order: Sequence[str], state: BackendState) -> dict[str, Any]:
    """`verdict` use | adapt | skip, `reasons` for people, `adapted` as in x-gateway-adapted."""
    candidate = next((c for c in plan.candidates if c.state is state), None)
    if candidate is None:
        skip = next(s for s in plan.skipped if s.state is state)
        return {"verdict": "skip", "kind": skip.kind, "reasons": [skip.reason], "adapted": []}
    reasons = [*_changes(candidate.adapt), *_limits(plan, candidate)]
    shut_out = state.name not in order
    verdict = "skip" if shut_out else "adapt" if candidate.adapt.kinds or candidate.adapt.mode else "use"
    return {
        "verdict": verdict,
        "kind": NOT_ENTERED if shut_out else None,
        "reasons": reasons,
        "adapted": list(candidate.adapt.kinds),
    }


def _changes(adapt: Adaptation) -> list[str]:
    words = {
        "asked with tool_choice none; calls are taken out of its text": adapt.mode == "mend",
        "asked without its tools": adapt.mode == "strip",
        "the gateway makes the call: its answer is forced into a schema of the tools, and checked": adapt.emulate,
        "nothing is known to force a call there: its answer is checked": adapt.verify and not adapt.emulate,
        f"set by the backend's own switch: thinking {adapt.thinking}": adapt.thinking is not None,
        "cannot think as the request wishes": "thinking_unavailable" in adapt.kinds,
    }
    return [text for text, applies in words.items() if applies]


def _limits(plan: Plan, candidate: Candidate) -> list[str]:
    found = []
    if candidate.doubtful:
        found.append("always thinks and was never seen to call a tool: after every other local backend")
    before = [c.state for c in plan.candidates[: plan.candidates.index(candidate)]]
    before += [s.state for s in plan.skipped if s.step <= candidate.step]
    if candidate.state.backend.cloud and not all(state.backend.cloud for state in before):
        allowed = " or ".join(plan.alias.cloud_when)
        when = f"when everything before it is out for: {allowed}" if allowed else "never"
        found.append(f"a cloud: entered {when} (cloud_when)")
    return found
