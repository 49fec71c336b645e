"""Thinking on or off, said in the words of the backend that is asked.

Clients say it in five ways; a backend understands one or two, and ignores the rest without a word. A demand (`adapt`
says it) is put into the backend's own; a wish goes up as it came, but for the fields that the backend would ignore.
Where the client already speaks the backend's words its bytes stay untouched.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from gateway.domain.backend import BackendState
from gateway.domain.engine_traits import TRAITS
from gateway.domain.families import SWITCH_VALUES
from gateway.domain.request import THINKING_SWITCHES, InferenceRequest
from gateway.routing.needs import THINKING_UNAVAILABLE, Adaptation

EFFORT = "reasoning_effort"
EFFORT_ON, EFFORT_OFF = "medium", "none"
USUAL_SWITCH = "enable_thinking"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Any).decode


def say_thinking(
    fields: dict[str, Raw], request: InferenceRequest, state: BackendState, adapt: Adaptation, now: float
) -> bool:
    """Changes `fields` (the client's, with the alias' params filled in). `adapt.thinking` None = no demand, or there is
    nothing to switch. False = the alias or the client's settings force it, and there is no way to say so there."""
    field, wanted = TRAITS[state.backend.engine].thinking_field, adapt.thinking
    if field == "chat_template_kwargs":
        _tidy_for_vllm(fields)
    elif field is None and _kind(fields) == "adaptive":
        del fields["thinking"]  # Anthropic's word alone, and what a model does that is told nothing
    if wanted is None:
        if field == "think" and request.thinking == "on" and THINKING_UNAVAILABLE in adapt.kinds:
            fields["think"] = Raw(b"false")  # a wish that it would refuse with a 400
        return True
    on = wanted == "on"
    declared = state.backend.thinking_switch
    if declared == EFFORT:
        _say_effort(fields, on)
    elif field == "chat_template_kwargs":
        _say_switch(fields, state.capabilities(now).switch or USUAL_SWITCH, on)
    elif field == "think":
        _say_think(fields, on)
    elif field == "reasoning_effort":
        if not _anthropic(fields, on):
            _say_effort(fields, on)
    elif declared is not None:
        _say_switch(fields, declared, on)
    elif request.thinking != wanted or request.thinking_wish:  # forced; what a client says itself is left alone
        if not state.backend.cloud:
            return False
        _say_effort(fields, on)
    return True


def _tidy_for_vllm(fields: dict[str, Raw]) -> None:
    """vLLM knows neither `think` nor `thinking` nor `reasoning`: demands in them come back as its switch, a wish for an
    effort as `reasoning_effort`, and `adaptive` is what it does anyway."""
    effort: object = None
    if "think" in fields:
        effort = _value(fields.pop("think"))
    fields.pop("thinking", None)
    if "reasoning" in fields:
        said = _value(fields.pop("reasoning"))
        effort = said.get("effort") if isinstance(said, dict) else effort
    if isinstance(effort, str) and _value(fields.get(EFFORT)) is None:
        fields[EFFORT] = Raw(_encode(effort))


def _say_switch(fields: dict[str, Raw], switch: str, on: bool) -> None:
    """`chat_template_kwargs`, beside whatever else is there. A switch of another name would be ignored, or worse."""
    said = _value(fields.get("chat_template_kwargs"))
    kwargs = said if isinstance(said, dict) else {}
    value = SWITCH_VALUES.get(switch, (True, False))[0 if on else 1]
    if switch in kwargs and kwargs[switch] == value and type(kwargs[switch]) is type(value):
        return
    kept = {name: other for name, other in kwargs.items() if name not in THINKING_SWITCHES}
    fields["chat_template_kwargs"] = Raw(_encode({**kept, switch: value}))


def _say_effort(fields: dict[str, Raw], on: bool) -> None:
    effort = _value(fields.get(EFFORT))
    if not isinstance(effort, str) or (effort != EFFORT_OFF) is not on:
        fields[EFFORT] = Raw(_encode(EFFORT_ON if on else EFFORT_OFF))


def _say_think(fields: dict[str, Raw], on: bool) -> None:
    """Ollama's own word comes before all others (upstream/engines/ollama_request.py reads them in this order)."""
    think = _value(fields.get("think"))
    if think is None:
        kwargs = _value(fields.get("chat_template_kwargs"))
        switches = kwargs if isinstance(kwargs, dict) else {}
        think = next((switches[name] for name in THINKING_SWITCHES if isinstance(switches.get(name), bool)), None)
    said = think is on or (on and isinstance(think, str))  # a level is on
    if not said:
        fields["think"] = Raw(b"true" if on else b"false")


def _anthropic(fields: dict[str, Raw], on: bool) -> bool:
    """Does it say so in Anthropic's way, which litellm passes on? One that says the opposite is taken out."""
    kind = _kind(fields)
    if kind in ("enabled", "disabled") and (kind == "enabled") is on:
        return True
    fields.pop("thinking", None)
    return False


def _kind(fields: dict[str, Raw]) -> object:
    """Of Anthropic's `thinking`."""
    thinking = _value(fields.get("thinking"))
    return thinking.get("type") if isinstance(thinking, dict) else None


def _value(raw: Raw | None) -> Any:
    """None where it is absent or does not parse: then the backend says so better."""
    if raw is None:
        return None
    try:
        return _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
