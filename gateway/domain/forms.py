"""The forms that a server reads: names of fields and roles, efforts, ids. A form is translated to what the server
reads, and a preference that it does not know is left out, so that neither costs an answer.

What a server does is a row (domain/servers.toml); what one refused was learned of it (`LEARNED`), and a retry in
the other form that succeeds is the proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

Limit = Literal["max_tokens", "max_completion_tokens", "both"]
History = Literal["reasoning", "reasoning_content", "none"]
Spelling = Literal["type", "adaptive", "reasoning_effort", "reasoning", "none"]
Ids = Literal["kimi", "mistral", "safe", "short", "unique"]


@dataclass(frozen=True, slots=True)
class Forms:
    """What one server reads of a chat. A default is what nearly all servers do.

    `developer`: it reads the role `developer`; else that is `system`. `system`: it reads the role `system`; else what
    it says is the user's. `turns`: the roles have to alternate, with one system message, the first. `text_results`:
    the result of a call may have no pictures. `strict`: values have their own types, messages content, and calls ids
    and arguments that are JSON (engines/strict.py). `paired`: each call of the history has to have a result, and each
    result a call. `parts`: it refuses parts of messages that are neither text nor media. `calls_alone`: a
    turn with calls may have no text. `plain_schemas`: it reads no patterns, formats and bounds in the schemas of tools.
    `limit`: the name of the answer's limit; None = it reads both names. `efforts`: the efforts that it knows; () = it
    reads none, None = not known. `thinking`: how Anthropic's `thinking` is spelled: "type" = as an object with its
    type alone; "adaptive" = the same, with that type where it is on; "none" = not at all; None = as it came.
    `thoughts`: the name of thoughts in the history; "none" = it refuses them; None = it reads both names. `ids`:
    the ids of calls that it takes: nine letters and digits ("mistral"), up to 64 letters, digits, "_" and "-"
    ("safe"), up to 40 of these ("short"), each but once ("unique"), the function's name and the number of the call
    ("kimi"); None = any. `session`: the header, or the field
    (a name without "-"), in which it reads the id of a session; None = it reads none, and is told none. `refused`:
    fields that it answers with an error, and `extras` those of a message, its parts and its calls; `strict` of a
    tool is one too."""

    developer: bool = False
    system: bool = True
    turns: bool = False
    text_results: bool = False
    flat: bool = False
    filled: bool = False
    strict: bool = False
    paired: bool = False
    parts: bool = False
    calls_alone: bool = False
    plain_schemas: bool = False
    limit: Limit | None = None
    efforts: tuple[str, ...] | None = None
    thinking: Spelling | None = None
    thoughts: History | None = None
    ids: Ids | None = None
    session: str | None = None
    refused: frozenset[str] = frozenset()
    extras: frozenset[str] = frozenset()

    @property
    def changes_messages(self) -> bool:
        """Is more than the role `developer` to be looked for in the messages?"""
        turns = self.turns or self.text_results or self.flat or self.filled or self.strict or not self.system
        turns = turns or self.paired or self.parts or self.calls_alone
        return turns or self.thoughts is not None or self.ids is not None or bool(self.extras)


USUAL_FORMS = Forms()

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra")
"""The words for efforts, from the least to the greatest."""

LEARNED = "form:"
"""How a learned fact of this kind begins: `form:NAME=VALUE`, with a name of `Forms`."""
LEARNED_MOST = 32  # of one backend
STRICT, PAIRED, PARTS = "strict=true", "paired=true", "parts=true"
UNLEARNED = (STRICT, PAIRED, PARTS)
"""Few requests need these, and to write them each time costs all: they are tried anew for each that is refused."""

_WORDS: Mapping[str, object] = MappingProxyType({"true": True, "false": False})


def learned_forms(row: Forms, facts: Iterable[str]) -> Forms:
    """The row with what was learned. Facts of other kinds are ignored."""
    for fact in facts:
        if not fact.startswith(LEARNED):
            continue
        name, _, value = fact.removeprefix(LEARNED).partition("=")
        if name == "refused":
            row = replace(row, refused=row.refused | {value})
        elif name == "extras":
            row = replace(row, extras=row.extras | {value})
        elif name == "efforts":
            row = replace(row, efforts=tuple(word for word in value.split(",") if word))
        elif name in Forms.__dataclass_fields__:
            row = replace(row, **{name: _WORDS.get(value, value)})  # type: ignore[arg-type]  # a word of that field
    return row


def nearest_effort(wanted: str, known: tuple[str, ...]) -> str | None:
    """The known effort that is nearest to the one that is wanted; of two, the greater. None = none is. A wish to think
    never becomes "none"."""
    if wanted in known:
        return wanted
    places = [EFFORTS.index(word) for word in known if word in EFFORTS and (word != "none" or wanted == "none")]
    if wanted not in EFFORTS or not places:
        return None
    at = EFFORTS.index(wanted)
    return EFFORTS[min(places, key=lambda place: (abs(place - at), -place))]
