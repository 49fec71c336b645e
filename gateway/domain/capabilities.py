"""What a backend can do, and where that is known from.

Three sources. What routes.yaml declares is the contract; what was seen (a check's observation, or a refusal that a
request met) stands beside it; engine, version, parser and model family imply the rest. Where two differ the safer one
is used, and the difference is drift. What nothing tells is None: tried and checked, not refused.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from gateway.config.snapshot import Backend
from gateway.domain.engine_traits import TRAITS
from gateway.domain.families import ENFORCES, Family, Thinking, family_of
from gateway.domain.observation import Observation
from gateway.domain.reason import quoting

if TYPE_CHECKING:
    from gateway.domain.backend import BackendState

OnDemand = Literal["enforced", "tried", "emulated", "no"]
Source = Literal["declared", "learned", "observed", "engine", "family", "unknown"]

PARSER_FREE = (0, 12)  # up to here vLLM forced a call without any parser
_CAN = ("yes", "mended")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """True, False, or None = not known. `sources`: field -> where it is known from.

    `tools`: calls of its own accord (tool_choice auto). `required`, `named`: a call on demand: "enforced" by its
    parser; "tried" = not enforced or not known, so the answer has to be verified; "emulated" by the engine; "no".
    `thinks`, `silent`: can it be had with thinking on, and with thinking off; `thinking` is the short form of both.
    `doubtful`: it always thinks, and was never seen to call a tool. `mendable`: it cannot call tools, but a vLLM
    renders them into the prompt all the same."""

    tools: bool | None = None
    required: OnDemand = "tried"
    named: OnDemand = "tried"
    json_schema: bool | None = None
    images: bool | None = None
    audio: bool | None = None
    thinking: Thinking | None = None
    thinks: bool | None = None
    silent: bool | None = None
    switch: str | None = None
    doubtful: bool = False
    mendable: bool = False
    sources: Mapping[str, Source] = field(default_factory=dict)

    @property
    def on_demand(self) -> OnDemand:
        """The weaker of `required` and `named`."""
        return max(self.required, self.named, key=("enforced", "emulated", "tried", "no").index)


class Cached(NamedTuple):
    """Capabilities with all that they were made of. Dicts of facts are replaced, never changed in place."""

    backend: Backend
    model: str | None
    version: str | None
    learned: Mapping[str, float]
    observed: Mapping[str, Observation]
    until: float  # when the first learned fact ends
    value: Capabilities


def capabilities(state: BackendState, now: float | None = None) -> Capabilities:
    """What this backend can do, as far as is known. `now` in the fleet's monotonic seconds."""
    known = state.known
    if (
        known is not None
        and known.learned is state.learned
        and known.observed is state.observed
        and known.backend is state.backend
        and known.model == state.observed_model
        and known.version == state.version
        and (not known.learned or (time.monotonic() if now is None else now) < known.until)
    ):
        return known.value
    now = time.monotonic() if now is None else now
    learned = {fact: until for fact, until in state.learned.items() if until > now}
    until = min(learned.values(), default=float("inf"))
    value = conclude(state.backend, state.model, state.version, learned, state.observed)
    state.known = Cached(
        state.backend, state.observed_model, state.version, state.learned, state.observed, until, value
    )
    return value


def conclude(
    backend: Backend,
    model: str | None,
    version: str | None,
    learned: Mapping[str, float],
    observed: Mapping[str, Observation],
) -> Capabilities:
    """The capabilities that follow from all sources. `learned` holds only what is still believed."""
    facts = _Facts(backend, family_of(model), version, learned, observed)
    tools, tools_from = facts.tools()
    thinking, thinks, silent, thinking_from = facts.thinking()
    required, required_from = facts.on_demand("tool_required")
    named, named_from = facts.on_demand("tool_named")
    json_schema, json_from = facts.json_schema()
    images, images_from = facts.takes("images", backend.vision)
    audio, audio_from = facts.takes("audio", backend.audio)
    switch, switch_from = facts.switch()
    unseen = tools is not False and _result(observed, "tool_auto") not in _CAN
    return Capabilities(
        tools=tools,
        required=required,
        named=named,
        json_schema=json_schema,
        images=images,
        audio=audio,
        thinking=thinking,
        thinks=thinks,
        silent=silent,
        switch=switch,
        doubtful=thinking == "always" and unseen and not backend.cloud,
        mendable=tools is False and TRAITS[backend.engine].launch_flags,
        sources={
            "tools": tools_from,
            "required": required_from,
            "named": named_from,
            "json_schema": json_from,
            "images": images_from,
            "audio": audio_from,
            "thinking": thinking_from,
            "switch": switch_from,
        },
    )


@dataclass(frozen=True, slots=True)
class _Facts:
    backend: Backend
    family: Family | None
    version: str | None
    learned: Mapping[str, float]
    observed: Mapping[str, Observation]

    def tools(self) -> tuple[bool | None, Source]:
        backend, seen = self.backend, _result(self.observed, "tool_auto")
        if backend.tool_parser == "none" or backend.auto_tools is False:
            return False, "declared"
        if "tools" in self.learned or "tool_parser" in self.learned:
            return False, "learned"
        if seen == "no":
            return False, "observed"
        if backend.tool_parser is not None or backend.auto_tools:
            return True, "declared"
        return (True, "observed") if seen in _CAN else (None, "unknown")

    def on_demand(self, check: str) -> tuple[OnDemand, Source]:
        backend = self.backend
        if emulates_calls(backend.engine):
            return "emulated", "engine"
        if not heeds_tool_choice(backend.engine):
            return "no", "engine"
        enforced = ENFORCES.get(backend.tool_parser or "") if TRAITS[backend.engine].launch_flags else None
        if _result(self.observed, check) == "no" and enforced != "nothing":  # there a model may obey or not
            return "no", "observed"
        if "tool_parser" in self.learned:
            return "no", "learned"
        if TRAITS[backend.engine].launch_flags and at_least(self.version, *PARSER_FREE) is False:
            return "enforced", "engine"
        if backend.tool_parser == "none":
            return "no", "declared"
        if enforced in ("envelope", "schema"):
            return "enforced", "declared"
        return "tried", "unknown" if backend.tool_parser is None else "declared"

    def json_schema(self) -> tuple[bool | None, Source]:
        seen = _result(self.observed, "json_schema")
        if seen == "no":
            return False, "observed"
        if TRAITS[self.backend.engine].enforces_schema:
            return True, "engine"
        return (True, "observed") if seen in _CAN else (None, "unknown")

    def takes(self, what: str, declared: bool | None) -> tuple[bool | None, Source]:
        if declared is not False and what in self.learned:
            return False, "learned"
        return declared, "unknown" if declared is None else "declared"

    def thinking(self) -> tuple[Thinking | None, bool | None, bool | None, Source]:
        """(short form, can think, can be silent, from where)."""
        source: Source = "declared"
        thinking = self.backend.thinking
        if thinking is None and self.family is not None:
            thinking, source = self.family.thinking, "family"
        thinks = None if thinking is None else thinking != "never"
        silent = None if thinking is None else thinking != "always"
        on, off = _result(self.observed, "thinking_on"), _result(self.observed, "thinking_off")
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

    def switch(self) -> tuple[str | None, Source]:
        if self.backend.thinking_switch is not None:
            return self.backend.thinking_switch, "declared"
        in_template = TRAITS[self.backend.engine].thinking_field == "chat_template_kwargs"
        if self.family is not None and self.family.switch is not None and in_template:
            return self.family.switch, "family"
        return None, "unknown"


def _short(thinks: bool | None, silent: bool | None) -> Thinking | None:
    if thinks is False and silent is not False:
        return "never"
    if silent is False and thinks is not False:
        return "always"
    return "optional" if thinks and silent else None


def _result(observed: Mapping[str, Observation], check: str) -> str:
    seen = observed.get(check)
    return seen.result if seen is not None else "untested"


def heeds_tool_choice(engine: str) -> bool:
    """Does `tool_choice` required or named mean something to this kind of server?"""
    return engine in TRAITS and TRAITS[engine].calls_on_demand


def emulates_calls(engine: str) -> bool:
    """Does our side of this engine make a call out of an answer that was forced into a schema?"""
    return engine in TRAITS and TRAITS[engine].emulates_calls


@lru_cache(maxsize=256)
def at_least(version: str | None, major: int, minor: int) -> bool | None:
    """Is this vLLM that version or a later one? None = it did not tell."""
    numbers = re.match(r"v?(\d+)\.(\d+)", version or "")
    return None if numbers is None else (int(numbers[1]), int(numbers[2])) >= (major, minor)


# -- what differs from routes.yaml ------------------------------------------------------------------------------------


def drift(state: BackendState) -> list[str]:
    """Where a backend differs from what routes.yaml declares of it, in words; empty = nowhere (or nothing was seen)."""
    backend, observed = state.backend, state.observed
    found = []
    serves = state.observed_context
    if backend.context and (state.context or 0) < min(backend.context, serves or backend.context):
        serves = state.context  # as its refusals tell
    if backend.context and serves and backend.context != serves:
        found.append(f"context: {backend.context} is declared, it serves {serves}")
    parser = backend.tool_parser
    if parser == "none":
        for check in ("tool_auto", "tool_required", "tool_named"):
            if _result(observed, check) == "yes":
                found.append(f"tool_parser: none is declared, but it calls tools ({check})")
                break
    elif parser is not None:
        for check in ("tool_auto", "tool_required", "tool_named"):
            if (check != "tool_auto" or backend.auto_tools is not False) and _result(observed, check) == "no":
                found.append(quoting(f"tool_parser: {parser} is declared, but {check}", observed[check].seen))
        if state.learned.keys() & {"tools", "tool_parser"}:
            found.append(f"tool_parser: {parser} is declared, but it refused a request with tools")
    found += _thinking_drift(backend, observed)
    for what, declared, key in (("images", backend.vision, "vision"), ("audio", backend.audio, "audio")):
        if declared and what in state.learned:
            found.append(f"{key}: true is declared, but it refused {what}")
    return found


def _thinking_drift(backend: Backend, observed: Mapping[str, Observation]) -> list[str]:
    declared = backend.thinking
    if declared is None:
        return []
    found = []
    for check, contradicted in (("thinking_on", ("optional", "always")), ("thinking_off", ("optional", "never"))):
        if declared in contradicted and _result(observed, check) == "no":
            found.append(quoting(f"thinking: {declared} is declared, but {check}", observed[check].seen))
    if declared == "never" and _result(observed, "thinking_on") == "yes":
        found.append("thinking: never is declared, but it thinks when it is told to")
    if declared == "always" and _result(observed, "thinking_off") == "yes":
        found.append("thinking: always is declared, but it can be told not to")
    return found
