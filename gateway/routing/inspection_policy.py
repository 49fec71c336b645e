"""The inspection policy of one attempt: the checks and mends of its answer, for this request, alias and backend."""

from __future__ import annotations

from typing import Literal

from gateway.config.snapshot import Alias
from gateway.domain.body import value_of
from gateway.domain.endpoints import CHAT
from gateway.domain.request import InferenceRequest
from gateway.inspection.policy import InspectionPolicy, LazyTools, formats_for, may_lack_opener, thoughts_for
from gateway.inspection.reasoning import THINK, Thoughts
from gateway.routing.plan import Candidate

STRAY_THOUGHTS = "reasoning_split"  # learned: the backend's thoughts are in the content, without an opening tag


def policy_for(
    request: InferenceRequest, alias: Alias, candidate: Candidate, now: float
) -> tuple[InspectionPolicy | None, Thoughts | None]:
    """(checks and mends, how this model marks its thoughts). A policy of None: the answer's bytes are passed on
    unchanged. Only in a stream is it assumed that thoughts lack their opening tag: a whole answer shows it."""
    if request.endpoint is not CHAT:
        return None, None
    state, adapt = candidate.state, candidate.adapt
    backend = state.backend
    thoughts = thoughts_for(state.checkpoint, backend.reasoning_parser)
    stray = request.stream and bool(state.facts.lacks) and state.facts.is_lacking(STRAY_THOUGHTS, now)
    stray = stray and may_lack_opener(state.checkpoint)
    tools = request.tools and request.tool_choice != "none" and adapt.mode != "strip"
    schema = _form_of(request) if "response_format" in request.fields else b""
    if not (tools or stray or alias.reasoning_field != "as_is"):
        return InspectionPolicy(schema=schema) if schema else None, thoughts
    marked = thoughts or THINK
    if stray:
        marked = marked.with_opener_implied()
    if not tools:
        return InspectionPolicy(thoughts=marked, reasoning_field=alias.reasoning_field, schema=schema), thoughts
    call, name = must_call(request)
    return InspectionPolicy(
        tools=LazyTools(bytes(request.fields["tools"])),
        formats=formats_for(
            state.checkpoint,
            backend.tool_parser,
            unopened=state.traits.leaves_calls_unread,
            bare=not state.traits.launch_flags,
        ),
        thoughts=marked,
        call=call,
        name=name,
        hold=(adapt.verify or state.disobeys) and call != "auto",
        reasoning_field=alias.reasoning_field,
        schema=schema,
        unread=state.traits.leaves_calls_unread,
    ), thoughts


def _form_of(request: InferenceRequest) -> bytes:
    """The `response_format` that asks for JSON; empty: it asks for text."""
    raw = request.fields["response_format"]
    if request.json_schema:
        return bytes(raw)
    asked = value_of(raw)
    return bytes(raw) if isinstance(asked, dict) and asked.get("type") == "json_object" else b""


def must_call(request: InferenceRequest) -> tuple[Literal["auto", "required", "named"], str]:
    """("named", the tool's name) | ("required", "") | ("auto", "")."""
    if request.tool_choice == "required":
        return "required", ""
    if request.tool_choice != "named":
        return "auto", ""
    choice = value_of(request.fields["tool_choice"])
    if not isinstance(choice, dict):  # nested too deeply to be decoded a second time
        return "auto", ""
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, dict) else None
    if isinstance(name, str):
        return "named", name
    # {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required", "tools": [...]}}
    allowed = choice.get("allowed_tools", choice)
    required = isinstance(allowed, dict) and allowed.get("mode") == "required"
    return ("required", "") if required else ("auto", "")
