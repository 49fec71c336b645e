"""The notation of tool calls and thoughts in a model's text, derived from its name and the declared parsers."""

from __future__ import annotations

from functools import lru_cache

from gateway.inspection.formats import FORMATS, Format
from gateway.inspection.formats.dsml import Dsml
from gateway.inspection.formats.json_calls import UNOPENED
from gateway.inspection.reasoning import REASONING, THINK, Thoughts
from gateway.launch.families import family_of

# Reasoning parsers of the same tags as one of REASONING.
_SAME_TAGS = {"nano_v3": "nemotron_v3", "deepseek_v41": "deepseek_v4", "hy_v3": "hy_v4"}
_LAST_TRIED = ("hermes", "qwen3_xml")  # the two formats that models most often fall back to


@lru_cache(maxsize=512)
def formats_for(model: str | None, tool_parser: str | None, *, unopened: bool = False) -> tuple[Format, ...]:
    """The formats that calls in this model's text may have, the most likely first: its family's, then the declared
    parser's (a wrong parser is a frequent cause of calls in the text), then hermes and XML. `unopened`: calls may also
    have lost their opening tag."""
    family = family_of(model)
    names = (family.tool_parser, *family.older_tool_parsers) if family is not None else ()
    found: list[Format] = []
    for name in (*names, tool_parser, *_LAST_TRIED):
        format_ = FORMATS.get(name) if name is not None else None
        if format_ is not None and format_ not in found:
            found += [format_, *(format_.variants if isinstance(format_, Dsml) else ())]
    return (*found, UNOPENED) if unopened else tuple(found)


@lru_cache(maxsize=512)
def thoughts_for(model: str | None, reasoning_parser: str | None) -> Thoughts | None:
    """How this model marks its thoughts: by its family, else by the declared parser, else, if neither is known, with
    `<think>`. None = its family never thinks, or its marks do not appear in the text."""
    family = family_of(model)
    for name in (family.reasoning_parser if family is not None else None, reasoning_parser):
        if name is not None and (thoughts := REASONING.get(_SAME_TAGS.get(name, name))) is not None:
            return thoughts
    return THINK if family is None and reasoning_parser in (None, "none") else None


@lru_cache(maxsize=512)
def may_lack_opener(model: str | None) -> bool:
    """May an answer of this model begin inside the thoughts? That is so for families that think between `<think>` and
    `</think>`, because the template may put the opener into the prompt. False if the family is not known."""
    family = family_of(model)
    return family is not None and family.thinking != "never" and thoughts_for(model, None) is THINK
