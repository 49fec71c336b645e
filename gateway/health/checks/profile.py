"""The profile of a backend: the facts by which the checks choose their requests and read the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.config.snapshot import Backend
from gateway.domain.engine_traits import EngineTraits, traits_of
from gateway.engines.thinking import USUAL_SWITCH
from gateway.inspection.formats import Format
from gateway.inspection.policy import formats_for, thoughts_for
from gateway.inspection.reasoning import Thoughts
from gateway.launch.families import SWITCH_VALUES, Thinking, family_of

MARLIN = "`!!!!!` on a Spark means that vLLM needs --moe-backend marlin"


@dataclass(frozen=True, slots=True)
class Profile:
    """`window`: tokens, as reported by the backend; None if not reported. `thinking`: None if unknown. `switch`: the
    request field that turns thinking on and off: a name in `chat_template_kwargs`, or the field `think` (Ollama) or
    `reasoning_effort`; None without such a field. `formats`, `thoughts`: how the model writes calls and thoughts.
    `refuses_unread`, `ends_without_done`: as in the traits. `tool_flags`, `reasoning_flags`: the launch flags that make
    vLLM parse calls and thoughts; empty where no parser is known for the model. `brief`: its answers are to be short,
    as in canaries."""

    refuses_unread: bool = False
    ends_without_done: bool = False
    window: int | None = None
    thinking: Thinking | None = None
    switch: str | None = None
    formats: tuple[Format, ...] = ()
    thoughts: Thoughts | None = None
    tool_flags: str = ""
    reasoning_flags: str = ""
    cloud: bool = False
    brief: bool = False

    def switched(self, on: bool) -> dict[str, Any]:
        """The request fields that turn thinking on or off; empty where there is no switch."""
        if self.switch is None:
            return {}
        if self.switch == "think":
            return {"think": on}
        if self.switch == "reasoning_effort":
            return {"reasoning_effort": "medium" if on else "none"}
        yes, no = SWITCH_VALUES.get(self.switch, (True, False))
        return {"chat_template_kwargs": {self.switch: yes if on else no}}


def profile_of(backend: Backend, model: str | None, window: int | None, traits: EngineTraits | None = None) -> Profile:
    """The profile that follows from routes.yaml and the model's family. `model`: the model's name in requests to the
    backend; `window`: tokens, as reported by the backend; `traits`: the row in force, None: the declared one."""
    traits = traits_of(backend) if traits is None else traits
    model = backend.checkpoint or model
    family = family_of(model)
    thinking = backend.thinking or (family.thinking if family is not None else None)
    known = family if traits.launch_flags else None
    return Profile(
        refuses_unread=traits.refuses_unread,
        ends_without_done=traits.ends_without_done,
        window=window,
        thinking=thinking,
        switch=_switch(backend, traits, family.switch if family is not None else None),
        formats=formats_for(model, backend.tool_parser),
        thoughts=thoughts_for(model, backend.reasoning_parser),
        tool_flags=_flags("--enable-auto-tool-choice --tool-call-parser", known.tool_parser) if known else "",
        reasoning_flags=_flags("--reasoning-parser", known.reasoning_parser) if known else "",
        cloud=backend.cloud,
    )


def _switch(backend: Backend, traits: EngineTraits, usual: str | None) -> str | None:
    """The `switch` of a profile. `usual`: the switch of the model's family. Ollama always has its own field. vLLM has
    the declared switch, else that of the family. litellm has one field for all clouds unless another switch is
    declared. Other servers have only a declared switch."""
    field = traits.thinking_field
    if field == "think":
        return field
    if field == "chat_template_kwargs":
        return backend.thinking_switch or usual or USUAL_SWITCH
    return backend.thinking_switch or field


def _flags(flag: str, parser: str | None) -> str:
    return f"{flag} {parser}" if parser is not None else ""
