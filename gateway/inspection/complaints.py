"""Refusals that name what the gateway could change: a field, a role, an effort, the form of an id or of a message.

A message may quote the client, so nothing is learned from it: the request is sent once more in the other form, and only
an answer to that is a proof. Pure. The texts are in known_errors.toml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Raw

from gateway.domain.body import value_of
from gateway.domain.fields import CHAT_PREFERENCES
from gateway.domain.forms import EFFORTS, STRICT, Forms
from gateway.inspection.known_errors import within

Fields = Mapping[str, Raw]

READ_MOST = 2000  # characters of a message

_LIMITS = ("max_tokens", "max_completion_tokens")
_EFFORT = re.compile(r"effort", re.IGNORECASE)
_WORD = re.compile(r"(?<![\w-])[a-z]+(?![\w-])")
_APART = (
    r"['\"`]{0}['\"`.]|^{0}\b"
    r"|(?:supplied|fields?|parameters?|arguments?|property|keys?)\W{{1,4}}(?:[\w'`\", ]{{0,80}}\W)?{0}\b"
)
_EXTRAS = (
    *("annotations", "refusal", "audio", "function_call", "reasoning_details", "thinking_blocks", "cache_control"),
    *("provider_specific_fields", "extra_content", "index", "prefix", "partial", "phase"),
)
_LOCATED = re.compile(r'"loc": ?\[([^\]]{1,200})\]')


def read_complaint(message: str, param: str | None, sent: Fields, prompt: str, forms: Forms) -> tuple[str, ...]:
    """The forms to try, as learned facts without their mark (`limit=max_tokens`); empty = the message names nothing
    that the gateway could change. `sent`: the fields that were sent; `prompt`: the messages, as JSON;
    `forms`: those in which they were sent."""
    message = message[:READ_MOST]
    if within("complains_strict", message) is not None:
        return () if forms.strict else (STRICT,)
    for read in (_limit, _effort, _ids, _thoughts, _result, _role):
        if found := read(message, param or "", sent, prompt, forms):
            return (found,)
    if extras := tuple(f"extras={name}" for name in _extras(message, param or "", prompt)):
        return extras
    return tuple(f"refused={name}" for name in _refused(message, param or "", sent))


def _limit(message: str, param: str, sent: Fields, prompt: str, forms: Forms) -> str | None:
    if within("complains_refuses", message) is None:
        return None
    named = [name for name in _LIMITS if name in sent and (param == name or re.search(rf"\b{name}\b", message))]
    if not named:
        return None
    at = {name: message.find(name) for name in named}
    refused = param if param in named else min(named, key=lambda name: at[name])
    return "limit=" + _LIMITS[1 - _LIMITS.index(refused)]


def _effort(message: str, param: str, sent: Fields, prompt: str, forms: Forms) -> str | None:
    inside = value_of(sent.get("reasoning"))
    inside = inside.get("effort") if isinstance(inside, dict) else None
    asked = value_of(sent.get("reasoning_effort")) or inside
    if asked is None or not (_EFFORT.search(message) or _EFFORT.search(param)):
        return None
    if forms.efforts is not None:
        return "efforts="  # those that the server named did not help
    known = [word for word in dict.fromkeys(_WORD.findall(message.lower())) if word in EFFORTS and word != asked]
    return "efforts=" + ",".join(known)


def _ids(message: str, param: str, sent: Fields, prompt: str, forms: Forms) -> str | None:
    if '"tool_call' not in prompt or not (within("complains_ids", message) or within("complains_ids", param)):
        return None
    if within("complains_nine", message):
        return "ids=mistral"
    if within("complains_long", message):
        return "ids=short"
    return "ids=safe" if within("complains_safe", message) else None


def _thoughts(message: str, param: str, sent: Fields, prompt: str, forms: Forms) -> str | None:
    found = within("complains_thoughts", message) or within("complains_thoughts", param)
    if found is None:
        return None
    if within("complains_refuses", message) is None and within("complains_wanted", message):
        return f"thoughts={found[1]}" if '"assistant"' in prompt else None
    if within("complains_refuses", message) and (f'"{found[1]}":' in prompt or '"reasoning' in prompt):
        return "thoughts=none"
    return None


def _result(message: str, param: str, sent: Fields, prompt: str, forms: Forms) -> str | None:
    shown = '"tool_call_id"' in prompt and '"type":' in prompt and within("complains_results", message)
    return "text_results=true" if shown and within("complains_text_only", message) else None


def _role(message: str, param: str, sent: Fields, prompt: str, forms: Forms) -> str | None:
    if '"developer"' in prompt and forms.developer and within("complains_role", message):
        return "developer=false"
    if '"system"' in prompt and within("complains_no_system", message):
        return "system=false"
    return "turns=true" if within("complains_turns", message) else None


def _extras(message: str, param: str, prompt: str) -> Iterator[str]:
    """The fields of messages, of their parts and calls, that the message refuses and that nobody needs."""
    if within("complains_refuses", message) is None:
        return
    for name in _EXTRAS:
        if f'"{name}":' in prompt and (re.search(rf"\b{name}\b", message) or param.rpartition(".")[2] == name):
            yield name


def _refused(message: str, param: str, sent: Fields) -> Iterator[str]:
    """The preferences among the fields that the message refuses. A name that is a word of any language counts only
    where it is set apart."""
    if within("complains_refuses", message) is None:
        return
    located = {word for place in _LOCATED.findall(message) for word in re.findall(r"\w+", place)}
    for name in sent:
        if name not in CHAT_PREFERENCES and name != "stream_options":
            continue
        named = rf"\b{name}\b" if "_" in name else _APART.format(name)
        if param.split(".")[0] == name or name in located or re.search(named, message):
            yield name
