"""How a model writes tool calls and marks its thoughts in its text, by its name and the parsers that are declared."""

from __future__ import annotations

from functools import lru_cache

from gateway.domain.families import family_of
from gateway.inspection.formats import FORMATS, Format
from gateway.inspection.reasoning import REASONING, THINK, Thoughts

# Reasoning parsers of the same tags as one of REASONING.
_SAME_TAGS = {"nano_v3": "nemotron_v3", "deepseek_v41": "deepseek_v4", "minimax_m3": "minimax_m2"}
_LAST_TRIED = ("hermes", "qwen3_xml")  # the two that most models fall back on


@lru_cache(maxsize=512)
def formats_for(model: str | None, tool_parser: str | None) -> tuple[Format, ...]:
    """The formats in which a call may stand in this model's text, the likeliest first: its family's, then the declared
    parser's (a wrong one is often why the call is in the text), then hermes and XML."""
    family = family_of(model)
    names = (family.tool_parser, *family.older_tool_parsers) if family is not None else ()
    found: list[Format] = []
    for name in (*names, tool_parser, *_LAST_TRIED):
        format_ = FORMATS.get(name) if name is not None else None
        if format_ is not None and format_ not in found:
            found.append(format_)
    return tuple(found)


@lru_cache(maxsize=512)
def thoughts_for(model: str | None, reasoning_parser: str | None) -> Thoughts | None:
    """How this model marks its thoughts: as its family does, else as the declared parser expects it, else, where
    nothing is known, with `<think>`. None = its family never thinks, or marks them in a way that no text shows."""
    family = family_of(model)
    for name in (family.reasoning_parser if family is not None else None, reasoning_parser):
        if name is not None and (thoughts := REASONING.get(_SAME_TAGS.get(name, name))) is not None:
            return thoughts
    return THINK if family is None and reasoning_parser in (None, "none") else None


@lru_cache(maxsize=512)
def may_lack_opener(model: str | None) -> bool:
    """Does this model's family think between `<think>` and `</think>`, so that its template may have put the first into
    the prompt, and an answer begins amid the thoughts? False where the family is not known."""
    family = family_of(model)
    return family is not None and family.thinking != "never" and thoughts_for(model, None) is THINK
