"""The capabilities of a backend, and the source of each. Pure: the result follows from the facts alone.

There are three sources: what routes.yaml declares; what was observed (by a check, or from the refusal of a request);
and what engine, version, parser and model family imply. Where two sources differ the safer one is used, and the
difference is drift (`drift.py`). A capability without a source is None: it is tried and the answer is checked, but no
request is refused because of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from typing import Literal

from gateway.config.snapshot import Backend
from gateway.domain.engine_traits import RESPONSES_LACK, EngineTraits, asked_there, traits_of
from gateway.domain.facts import Observation
from gateway.launch.families import ENFORCES, ModelFamily, Thinking, family_of

OnDemand = Literal["enforced", "tried", "emulated", "no"]
Origin = Literal["declared", "learned", "observed", "engine", "family", "unknown"]

PARSER_FREE = (0, 12)  # up to here vLLM forced a call without any parser
_CAN = ("yes", "mended")
_RELEVANT = frozenset(
    {"tools", "tool_parser", "images", "audio", "pdf", "thinking", RESPONSES_LACK}
)  # learned limitations that count here


@dataclass(frozen=True, slots=True)
class Capabilities:
    """True, False, or None = not known. `sources`: field -> the source of its value.

    `tools`: tools can be offered with tool_choice auto. `required`, `named`: a call on demand is "enforced" by the
    parser; "tried" = not enforced or not known, so the answer has to be verified; "emulated" by the engine; "no".
    `pdf`: it takes files in chats. `continues`: it continues the text of the last message.
    `thinks`, `silent`: thinking can be switched on, and off; `thinking` is the short form of both. `doubtful`: the
    model always thinks, and was never seen to call a tool. `mendable`: the backend cannot call tools, but is a vLLM,
    which renders them into the prompt all the same. `hosted`: it runs tools of its own at `/v1/responses`."""

    tools: bool | None = None
    required: OnDemand = "tried"
    named: OnDemand = "tried"
    json_schema: bool | None = None
    logprobs: bool | None = None
    images: bool | None = None
    audio: bool | None = None
    pdf: bool | None = None
    continues: bool | None = None
    thinking: Thinking | None = None
    thinks: bool | None = None
    silent: bool | None = None
    switch: str | None = None
    doubtful: bool = False
    mendable: bool = False
    hosted: bool = False
    sources: Mapping[str, Origin] = field(default_factory=dict)


Timeline = tuple[tuple[float, Capabilities], ...]
"""(monotonic seconds until which the entry is valid, capabilities), in the order of time. The last never expires."""


def timeline_of(
    backend: Backend,
    model: str | None,
    version: str | None,
    lacks: Mapping[str, float],
    observed: Mapping[str, Observation],
    traits: EngineTraits | None = None,
) -> Timeline:
    """The capabilities now, and after each moment at which a learned limitation ceases to be believed.

    `lacks`: limitation -> until when it is believed. `traits`: the row in force; None = the declared one. The timeline
    contains the expiry of each limitation, so building it needs no clock."""
    lacks = {name: until for name, until in lacks.items() if name in _RELEVANT}
    ends = (*sorted(set(lacks.values())), inf)
    return tuple((end, conclude(backend, model, version, _believed(lacks, end), observed, traits)) for end in ends)


def _believed(lacks: Mapping[str, float], end: float) -> Set[str]:
    """The limitations that are believed until `end` or longer."""
    return {name for name, until in lacks.items() if until >= end}


def conclude(
    backend: Backend,
    model: str | None,
    version: str | None,
    learned: Set[str],
    observed: Mapping[str, Observation],
    traits: EngineTraits | None = None,
) -> Capabilities:
    """The capabilities that follow from all sources. `learned`: the limitations that are believed. `traits`: the row in
    force; None = the declared one."""
    traits = traits_of(backend) if traits is None else traits
    facts = _Facts(backend, traits, family_of(model), version, learned, observed)
    tools, tools_from = facts.tools()
    thinking, thinks, silent, thinking_from = facts.thinking()
    required, required_from = facts.on_demand("tool_required")
    named, named_from = facts.on_demand("tool_named")
    json_schema, json_from = facts.json_schema()
    images, images_from = facts.takes("images", backend.vision)
    audio, audio_from = facts.takes("audio", backend.audio)
    pdf, pdf_from = facts.takes("pdf", backend.pdf, traits.takes_pdf)
    switch, switch_from = facts.switch()
    how = asked_there(backend.responses, traits.responses)
    unseen = tools is not False and result_of(observed, "tool_auto") not in _CAN
    return Capabilities(
        tools=tools,
        required=required,
        named=named,
        json_schema=json_schema,
        logprobs=None if traits.logprobs else False,
        images=images,
        audio=audio,
        pdf=pdf,
        continues=traits.continues_text,
        thinking=thinking,
        thinks=thinks,
        silent=silent,
        switch=switch,
        doubtful=thinking == "always" and unseen and not backend.cloud,
        mendable=tools is False and traits.launch_flags,
        hosted=how is not None and how.hosted and RESPONSES_LACK not in learned,
        sources={
            "tools": tools_from,
            "required": required_from,
            "named": named_from,
            "json_schema": json_from,
            "logprobs": "unknown" if traits.logprobs else "engine",
            "images": images_from,
            "audio": audio_from,
            "pdf": pdf_from,
            "continues": "unknown" if traits.continues_text is None else "engine",
            "thinking": thinking_from,
            "switch": switch_from,
        },
    )


@dataclass(frozen=True, slots=True)
class _Facts:
    backend: Backend
    traits: EngineTraits
    family: ModelFamily | None
    version: str | None
    learned: Set[str]
    observed: Mapping[str, Observation]

    def tools(self) -> tuple[bool | None, Origin]:
        backend, seen = self.backend, result_of(self.observed, "tool_auto")
        if backend.tool_parser == "none" or backend.auto_tools is False:
            return False, "declared"
        if "tools" in self.learned or "tool_parser" in self.learned:
            return False, "learned"
        if seen == "no":
            return False, "observed"
        if backend.tool_parser is not None or backend.auto_tools:
            return True, "declared"
        return (True, "observed") if seen in _CAN else (None, "unknown")

    def on_demand(self, check: str) -> tuple[OnDemand, Origin]:
        backend = self.backend
        if self.traits.emulates_calls:
            return "emulated", "engine"
        if not self.traits.calls_on_demand if check == "tool_required" else self.traits.named_calls == "never":
            return "no", "engine"
        enforced = ENFORCES.get(backend.tool_parser or "") if self.traits.launch_flags else None
        if result_of(self.observed, check) == "no" and enforced != "nothing":  # there a model may obey or not
            return "no", "observed"
        if "tool_parser" in self.learned:
            return "no", "learned"
        if self.traits.launch_flags and at_least(self.version, *PARSER_FREE) is False:
            return "enforced", "engine"
        if backend.tool_parser == "none":
            return "no", "declared"
        if enforced in ("envelope", "schema"):
            return "enforced", "declared"
        return "tried", "unknown" if backend.tool_parser is None else "declared"

    def json_schema(self) -> tuple[bool | None, Origin]:
        seen = result_of(self.observed, "json_schema")
        if seen == "no":
            return False, "observed"
        if self.traits.enforces_schema is not None:
            return self.traits.enforces_schema, "engine"
        return (True, "observed") if seen in _CAN else (None, "unknown")

    def takes(self, what: str, declared: bool | None, usual: bool | None = None) -> tuple[bool | None, Origin]:
        """`usual`: what its server does, where nothing is declared."""
        if declared is not False and what in self.learned:
            return False, "learned"
        if declared is None and usual is not None:
            return usual, "engine"
        return declared, "unknown" if declared is None else "declared"

    def thinking(self) -> tuple[Thinking | None, bool | None, bool | None, Origin]:
        """(short form, can think, can be silent, source)."""
        source: Origin = "declared"
        thinking = self.backend.thinking
        if thinking is None and self.family is not None:
            thinking, source = self.family.thinking, "family"
        thinks = None if thinking is None else thinking != "never"
        silent = None if thinking is None else thinking != "always"
        on, off = result_of(self.observed, "thinking_on"), result_of(self.observed, "thinking_off")
        if on == "no" or "thinking" in self.learned:
            thinks = False
        elif thinks is None and on in _CAN:
            thinks = True
        if off == "no":
            silent = False
        elif silent is None and off in _CAN:
            silent = True
        short = _short(thinks, silent)
        if short != thinking:
            source = "learned" if "thinking" in self.learned else "observed"
        return short, thinks, silent, source if short is not None else "unknown"

    def switch(self) -> tuple[str | None, Origin]:
        if self.backend.thinking_switch is not None:
            return self.backend.thinking_switch, "declared"
        in_template = self.traits.thinking_field == "chat_template_kwargs"
        if self.family is not None and self.family.switch is not None and in_template:
            return self.family.switch, "family"
        return None, "unknown"


def _short(thinks: bool | None, silent: bool | None) -> Thinking | None:
    if thinks is False and silent is not False:
        return "never"
    if silent is False and thinks is not False:
        return "always"
    return "optional" if thinks and silent else None


def result_of(observed: Mapping[str, Observation], check: str) -> str:
    """The result of a check: "yes", "mended", "no" or "untested"."""
    seen = observed.get(check)
    return seen.result if seen is not None else "untested"


@lru_cache(maxsize=256)
def at_least(version: str | None, major: int, minor: int) -> bool | None:
    """Is this vLLM that version or a later one? None = its version is not known."""
    numbers = re.match(r"v?(\d+)\.(\d+)", version or "")
    return None if numbers is None else (int(numbers[1]), int(numbers[2])) >= (major, minor)
