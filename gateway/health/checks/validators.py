"""What is wrong with the answer to a check, in words for the operator; None = nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.health.checks.profile import MARLIN
from gateway.health.checks.reply import ParsedAnswer, short
from gateway.health.checks.requests import TOOLS
from gateway.inspection import heuristics

_OPENERS = ("<think>", "<seed:think>", "[THINK]", "<|channel>")
_CLOSERS = ("</think>", "</seed:think>", "[/THINK]", "<channel|>")
GARBAGE = 5  # of one character in a row, and nothing else, is no answer


def text_flaw(said: ParsedAnswer) -> str | None:
    """The content must be text that is no garbage, without thoughts in it."""
    if is_garbage(said.content):
        return f"garbage: {short(said.content)}; {MARLIN}"
    if leaks_thoughts(said.content):
        return f"its thoughts stand in the content: {short(said.content)}"
    return None if said.content.strip() else explain_no_content(said)


def number_flaw(said: ParsedAnswer) -> str | None:
    """The content must hold 204 (12*17)."""
    flaw = text_flaw(said)
    if flaw is None and "204" not in said.content:
        return f"12*17 is 204, it said {short(said.content)}"
    return flaw


def stream_flaw(said: ParsedAnswer) -> str | None:
    if (flaw := text_flaw(said)) is not None:
        return flaw
    return None if said.done else "the stream ends without [DONE]"


def call_flaw(said: ParsedAnswer, name: str | None, city: str | None) -> str | None:
    """The first call must be a good one: of the tool `name` (None = any of the offered), with `city` among its
    arguments."""
    if not said.calls:
        return explain_missing_call(said)
    called, arguments = said.calls[0]
    if name is not None and called != name:
        return f"called {short(called)} instead of {name}"
    if called not in [tool["function"]["name"] for tool in TOOLS]:
        return f"called {short(called)}, which was not offered"
    given = arguments_of(arguments)
    if given is None:
        return f"the arguments of its call are not a JSON object: {short(arguments)}"
    where = given.get("city")
    if not isinstance(where, str) or not where.strip():
        return f"called {called} without its required `city`: {short(arguments)}"
    if city is not None and city.lower() not in where.lower():
        return f"called {called} for {short(where)} instead of {city}"
    return None


def calls_flaw(said: ParsedAnswer) -> str | None:
    """There must be a call for each of the two cities."""
    if not said.calls:
        return explain_missing_call(said)
    places = {str((arguments_of(text) or {}).get("city")).lower() for _, text in said.calls}
    if any("oslo" in place for place in places) and any("rome" in place for place in places):
        return None
    shown = ", ".join(f"{name}({text})" for name, text in said.calls)
    return f"{len(said.calls)} call{'s' if len(said.calls) > 1 else ''} for two cities: {short(shown)}"


def json_flaw(said: ParsedAnswer) -> str | None:
    """The content must be the object that `requests.SCHEMA` describes."""
    if not said.content.strip():
        return explain_no_content(said)
    try:
        value = json.loads(said.content)
    except (ValueError, RecursionError):
        return f"not JSON, so the schema is not enforced: {short(said.content)}"
    if not isinstance(value, dict) or value.keys() != {"factors", "product"}:
        return f"not the keys of the schema: {short(said.content)}"
    factors = value["factors"]
    whole = type(value["product"]) is int and isinstance(factors, list) and all(type(f) is int for f in factors)
    return None if whole else f"not the types of the schema: {short(said.content)}"


# -- what else may have come ------------------------------------------------------------------------------------------


def explain_missing_call(said: ParsedAnswer) -> str:
    if is_garbage(said.content):
        return f"garbage: {short(said.content)}; {MARLIN}"
    if said.content.strip():
        return f"no call, but text: {short(said.content)}"
    if said.reasoning.strip():
        tokens = f"of {said.tokens} tokens " if said.tokens else ""
        return f"no call and no text: {tokens}only {len(said.reasoning)} characters of thoughts are left"
    return explain_no_content(said)


def explain_no_content(said: ParsedAnswer) -> str:
    """Why there is no content."""
    if said.calls:
        return f"a call instead of an answer: {short(said.calls[0][0])}"
    if said.reasoning.strip():
        if said.finish == "length":
            return f"still thinking after {said.tokens or 'all its'} tokens, nothing was said"
        return f"all that it said stands in the reasoning field: {short(said.reasoning)}"
    if said.tokens > 1:
        return f"nothing is left of {said.tokens} tokens: its parser does not fit its model"
    return "an empty answer"


def is_garbage(text: str) -> bool:
    """One character over and over, of which a check takes less than a client's answer may have."""
    return heuristics.is_garbage(text, GARBAGE)


def leaks_thoughts(content: str) -> bool:
    return content.lstrip().startswith(_OPENERS) or any(closer in content for closer in _CLOSERS)


def arguments_of(text: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
