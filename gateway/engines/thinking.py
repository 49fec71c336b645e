"""Thinking on or off, translated into the field that the backend understands.

Clients ask for thinking in five ways; a backend understands one or two of them and silently ignores the others. A
demand (`Adaptation.thinking`) is written into the backend's own field. A wish is passed on, without the fields that the
backend would ignore. If the client already uses the backend's field, its bytes are not changed.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from gateway.domain.backend import BackendState
from gateway.domain.body import THINKING_SWITCHES, value_of
from gateway.domain.request import InferenceRequest
from gateway.launch.families import SWITCH_VALUES
from gateway.routing.needs import THINKING_UNAVAILABLE, Adaptation

EFFORT = "reasoning_effort"
EFFORT_ON, EFFORT_OFF = "medium", "none"
USUAL_SWITCH = "enable_thinking"

_encode = msgspec.json.Encoder().encode


def set_thinking(
    fields: dict[str, Raw], request: InferenceRequest, state: BackendState, adapt: Adaptation, now: float
) -> bool:
    """Write the demanded thinking into `fields` (the client's fields with the alias' params), which are changed in
    place. `adapt.thinking` None: no demand, or the backend has no switch. Returns False if the alias or the client's
    settings demand thinking on or off and this backend has no field for it."""
    field, wanted = state.traits.thinking_field, adapt.thinking
    if field == "chat_template_kwargs":
        _drop_unknown_to_vllm(fields)
    elif field is None and _kind(fields) == "adaptive":
        del fields["thinking"]  # only Anthropic knows it, and it is a model's default
    if wanted is None:
        if field == "think" and request.thinking == "on" and THINKING_UNAVAILABLE in adapt.kinds:
            fields["think"] = Raw(b"false")  # the backend would refuse the wish with a 400
        return True
    on = wanted == "on"
    declared = state.backend.thinking_switch
    if declared is not None and field is None:
        fields.pop("thinking", None)  # its own switch says it
    if declared == EFFORT:
        _set_effort(fields, on)
    elif field == "chat_template_kwargs":
        _set_switch(fields, state.capabilities(now).switch or USUAL_SWITCH, on)
    elif field == "think":
        _set_think(fields, on)
    elif field == "reasoning_effort":
        if not _demanded_by_thinking(fields, on):
            _set_effort(fields, on)
    elif declared is not None:
        _set_switch(fields, declared, on)
    elif request.thinking != wanted or request.thinking_wish:  # the client's own demand is not changed
        if not state.backend.cloud:
            return False
        _set_effort(fields, on)
    return True


def _drop_unknown_to_vllm(fields: dict[str, Raw]) -> None:
    """Remove `think`, `thinking` and `reasoning`, which vLLM does not know. A demand in them is written into its switch
    afterwards, a wish for an effort into `reasoning_effort`; `adaptive` is vLLM's default."""
    effort: object = None
    if "think" in fields:
        effort = value_of(fields.pop("think"))
    fields.pop("thinking", None)
    if "reasoning" in fields:
        given = value_of(fields.pop("reasoning"))
        effort = given.get("effort") if isinstance(given, dict) else effort
    if isinstance(effort, str) and value_of(fields.get(EFFORT)) is None:
        fields[EFFORT] = Raw(_encode(effort))


def _set_switch(fields: dict[str, Raw], switch: str, on: bool) -> None:
    """Set the switch in `chat_template_kwargs` and keep its other keys. Switches of other names are removed, since the
    template may ignore or misread them."""
    given = value_of(fields.get("chat_template_kwargs"))
    kwargs = given if isinstance(given, dict) else {}
    value = SWITCH_VALUES.get(switch, (True, False))[0 if on else 1]
    if switch in kwargs and kwargs[switch] == value and type(kwargs[switch]) is type(value):
        return
    kept = {name: other for name, other in kwargs.items() if name not in THINKING_SWITCHES}
    fields["chat_template_kwargs"] = Raw(_encode({**kept, switch: value}))


def _set_effort(fields: dict[str, Raw], on: bool) -> None:
    effort = value_of(fields.get(EFFORT))
    if not isinstance(effort, str) or (effort != EFFORT_OFF) is not on:
        fields[EFFORT] = Raw(_encode(EFFORT_ON if on else EFFORT_OFF))


def _set_think(fields: dict[str, Raw], on: bool) -> None:
    """Set Ollama's `think`, which takes precedence over all other fields (gateway/engines/ollama/request.py)."""
    think = value_of(fields.get("think"))
    if think is None:
        kwargs = value_of(fields.get("chat_template_kwargs"))
        switches = kwargs if isinstance(kwargs, dict) else {}
        think = next((switches[name] for name in THINKING_SWITCHES if isinstance(switches.get(name), bool)), None)
    given = think is on or (on and isinstance(think, str))  # a level is on
    if not given:
        fields["think"] = Raw(b"true" if on else b"false")


def _demanded_by_thinking(fields: dict[str, Raw], on: bool) -> bool:
    """Does Anthropic's `thinking`, which litellm passes on, demand this already? Otherwise the field is removed."""
    kind = _kind(fields)
    if kind in ("enabled", "disabled") and (kind == "enabled") is on:
        return True
    fields.pop("thinking", None)
    return False


def _kind(fields: dict[str, Raw]) -> object:
    """The `type` of Anthropic's `thinking`."""
    thinking = value_of(fields.get("thinking"))
    return thinking.get("type") if isinstance(thinking, dict) else None
