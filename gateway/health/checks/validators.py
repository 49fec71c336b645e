"""Validators of the answers to checks: each returns the first flaw as a text for the operator, if any."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.health.checks.profile import MARLIN
from gateway.health.checks.reply import ParsedAnswer, short
from gateway.health.checks.requests import TOOLS
from gateway.inspection import heuristics

_OPENING_MARKERS = ("<think>", "<seed:think>", "[THINK]", "<|channel>")
_CLOSING_MARKERS = ("</think>", "</seed:think>", "[/THINK]", "<channel|>")
GARBAGE = 5  # an answer of one character repeated at least this often is garbage


def text_flaw(answer: ParsedAnswer) -> str | None:
    """The content must be text that is not garbage and holds no thoughts."""
    if is_garbage(answer.content):
        return f"garbage: {short(answer.content)}; {MARLIN}"
    if leaks_thoughts(answer.content):
        return f"its thoughts stand in the content: {short(answer.content)}"
    return None if answer.content.strip() else explain_no_content(answer)


def number_flaw(answer: ParsedAnswer) -> str | None:
    """The content must hold 204 (12*17)."""
    flaw = text_flaw(answer)
    if flaw is None and "204" not in answer.content:
        return f"12*17 is 204, it said {short(answer.content)}"
    return flaw


def call_flaw(answer: ParsedAnswer, name: str | None, city: str | None) -> str | None:
    """The first call must name the tool `name` (None: any offered tool) and have an argument `city` that contains
    `city` (None: any city)."""
    if not answer.calls:
        return explain_missing_call(answer)
    called, arguments = answer.calls[0]
    if name is not None and called != name:
        return f"called {short(called)} instead of {name}"
    if called not in [tool["function"]["name"] for tool in TOOLS]:
        return f"called {short(called)}, which was not offered"
    fields = arguments_of(arguments)
    if fields is None:
        return f"the arguments of its call are not a JSON object: {short(arguments)}"
    called_city = fields.get("city")
    if not isinstance(called_city, str) or not called_city.strip():
        return f"called {called} without its required `city`: {short(arguments)}"
    if city is not None and city.lower() not in called_city.lower():
        return f"called {called} for {short(called_city)} instead of {city}"
    return None


def calls_flaw(answer: ParsedAnswer) -> str | None:
    """There must be a call for each of the two cities."""
    if not answer.calls:
        return explain_missing_call(answer)
    cities = {str((arguments_of(text) or {}).get("city")).lower() for _, text in answer.calls}
    if any("oslo" in city for city in cities) and any("rome" in city for city in cities):
        return None
    described = ", ".join(f"{name}({text})" for name, text in answer.calls)
    return f"{len(answer.calls)} call{'s' if len(answer.calls) > 1 else ''} for two cities: {short(described)}"


def json_flaw(answer: ParsedAnswer) -> str | None:
    """The content must be the object that `requests.SCHEMA` describes."""
    if not answer.content.strip():
        return explain_no_content(answer)
    try:
        value = json.loads(answer.content)
    except (ValueError, RecursionError):
        return f"not JSON, so the schema is not enforced: {short(answer.content)}"
    if not isinstance(value, dict) or value.keys() != {"factors", "product"}:
        return f"not the keys of the schema: {short(answer.content)}"
    factors = value["factors"]
    types_fit = type(value["product"]) is int and isinstance(factors, list) and all(type(f) is int for f in factors)
    return None if types_fit else f"not the types of the schema: {short(answer.content)}"


# -- why there is no call or content ----------------------------------------------------------------------------------


def explain_missing_call(answer: ParsedAnswer) -> str:
    """The flaw of an answer without the expected call."""
    if is_garbage(answer.content):
        return f"garbage: {short(answer.content)}; {MARLIN}"
    if answer.content.strip():
        return f"no call, but text: {short(answer.content)}"
    if answer.reasoning.strip():
        tokens = f"of {answer.tokens} tokens " if answer.tokens else ""
        return f"no call and no text: {tokens}only {len(answer.reasoning)} characters of thoughts are left"
    return explain_no_content(answer)


def explain_no_content(answer: ParsedAnswer) -> str:
    """The flaw of an answer without content."""
    if answer.calls:
        return f"a call instead of an answer: {short(answer.calls[0][0])}"
    if answer.reasoning.strip():
        if answer.finish == "length":
            return f"still thinking after {answer.tokens or 'all its'} tokens, nothing was said"
        return f"all that it said stands in the reasoning field: {short(answer.reasoning)}"
    if answer.tokens > 1:
        return f"nothing is left of {answer.tokens} tokens: its parser does not fit its model"
    return "an empty answer"


def is_garbage(text: str) -> bool:
    """Does the text repeat one character? A check allows fewer repetitions than the inspection of clients' answers."""
    return heuristics.is_garbage(text, GARBAGE)


def leaks_thoughts(content: str) -> bool:
    return content.lstrip().startswith(_OPENING_MARKERS) or any(closer in content for closer in _CLOSING_MARKERS)


def arguments_of(text: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
