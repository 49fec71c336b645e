"""What the answer to one request is checked for, and how it is mended: by the request, and by the notation of calls and
thoughts of the model, which its name and the declared parsers tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from gateway.domain.body import value_of
from gateway.domain.request import InferenceRequest
from gateway.inspection.echo import client_mentions
from gateway.inspection.formats import FORMATS, Format
from gateway.inspection.formats.json_calls import UNOPENED
from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.reasoning import REASONING, THINK, Thoughts
from gateway.launch.families import family_of

ReasoningField = Literal["as_is", "both", "reasoning", "reasoning_content", "none"]
CLOSER = THINK.closer
CACHED_MOST = 256 * 1024  # bytes: larger `tools` are not cached when parsed; agents send the same ones every time


@dataclass(frozen=True, slots=True)
class InspectionPolicy:
    """What one answer is checked for, and how it is mended.

    `tools`: the tools that may be called; None = none. `formats`: the formats of calls in the text. `thoughts`: the
    notation of thoughts in the text.

    `call`: "required" | "named" = the answer must call a tool (`name`, for a named one). `hold`: the backend does
    not enforce that, so content is held until the first call. `schema`: the `response_format` that asks for JSON,
    which the answer has to satisfy; empty: there is none. `reasoning_field`: the field name of thoughts for the
    client. `unread`: the backend's parser passes on what it could not read (unread_calls.py)."""

    tools: OfferedTools | None = None
    formats: Sequence[Format] = ()
    thoughts: Thoughts | None = None
    call: Literal["auto", "required", "named"] = "auto"
    name: str = ""
    hold: bool = False
    reasoning_field: ReasoningField = "as_is"
    schema: bytes = b""
    unread: bool = False

    @property
    def mends_arguments(self) -> bool:
        """Are the arguments of calls mended? (With `unread`, the rest of them may be in the content.)"""
        return self.tools is not None and not self.unread

    @property
    def must_call(self) -> bool:
        return self.tools is not None and self.call != "auto"


# The violations that an answer can have: the kinds of gateway_violations_total.
KINDS = (
    *("tool_call_as_text", "reasoning_as_text", "finish_reason", "arguments_not_json", "unknown_tool", "usage"),
    *("missing_arguments", "tool_choice_ignored", "empty", "nothing_said", "swallowed", "reasoning_cut"),
    *("repetition", "garbage"),
)
NOTHING_EXPECTED = InspectionPolicy()


class LazyTools(OfferedTools):
    """A request's `tools` as bytes, parsed on first access: most answers call none, and agents send 50 KB of them."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        if name not in ("_schemas", "_types", "_names", "_shapes"):
            raise AttributeError(name)
        read = _kept(self._raw) if len(self._raw) <= CACHED_MOST else OfferedTools(_decoded(self._raw))
        self._schemas, self._types, self._names = read._schemas, read._types, read._names
        self._shapes = read._shapes
        return getattr(self, name)

    def __bool__(self) -> bool:
        return True


@lru_cache(maxsize=32)
def _kept(raw: bytes) -> OfferedTools:
    return OfferedTools(_decoded(raw))


def _decoded(raw: bytes) -> Iterator[Any]:
    tools = value_of(raw)
    yield from tools if isinstance(tools, list) else ()


def closes_thoughts(request: InferenceRequest, thoughts: Thoughts | None) -> bool:
    """Does a `</think>`, or this model's tag of that kind, end thoughts without an opener? It does not if the model
    marks thoughts differently or not at all, or if the client's messages mention that tag."""
    return thoughts is not None and thoughts.is_tag and not client_mentions(request, thoughts.closer)


# -- the notation of a model -------------------------------------------------------------------------------------------

# Reasoning parsers of the same tags as one of REASONING.
_SAME_TAGS = {"nano_v3": "nemotron_v3", "deepseek_v41": "deepseek_v4", "hy_v3": "hy_v4"}
_LAST_TRIED = ("hermes", "qwen3_xml", "invoke", "antml", "tools", "function_call", "fenced", "fenced_call")
_BARE_TRIED = ("llama3_json", "tool_request")


@lru_cache(maxsize=512)
def formats_for(
    model: str | None, tool_parser: str | None, *, unopened: bool = False, bare: bool = False
) -> tuple[Format, ...]:
    """The formats that calls in this model's text may have, the most likely first: its family's, then the declared
    parser's (a wrong parser is a frequent cause of calls in the text), then hermes and XML. `unopened`: calls may also
    have lost their opening tag. `bare`: they may be JSON without any mark, as the whole text."""
    family = family_of(model)
    names = (family.tool_parser, *family.older_tool_parsers) if family is not None else ()
    found: list[Format] = []
    for name in (*names, tool_parser, *_LAST_TRIED, *(_BARE_TRIED if bare else ())):
        format_ = FORMATS.get(name) if name is not None else None
        if format_ is not None and format_ not in found:
            found += [format_, *format_.variants]
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
    thoughts = thoughts_for(model, None) if family is not None and family.thinking != "never" else None
    return thoughts is not None and thoughts.is_tag
