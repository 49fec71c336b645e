"""Grades the answer to a check: correct as received (yes), correct once mended (mended), or wrong (no)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.domain.facts import Observation
from gateway.health.checks.profile import MARLIN, Profile
from gateway.health.checks.reply import ParsedAnswer, mended, short
from gateway.health.checks.requests import THOUGHT_WORDS, TOOLS
from gateway.inspection import heuristics

_OPENING_MARKERS = ("<think>", "<seed:think>", "[THINK]", "<|channel>")
_CLOSING_MARKERS = ("</think>", "</seed:think>", "[/THINK]", "<channel|>")
GARBAGE = 5  # an answer of one character repeated at least this often is garbage

Validator = Callable[[ParsedAnswer], str | None]  # returns the description of a flaw; None if there is none


def life(profile: Profile, answer: ParsedAnswer) -> Observation:
    return Observation("yes", f"answered with {answer.tokens} tokens")


def plain(profile: Profile, answer: ParsedAnswer) -> Observation:
    return _grade(profile, answer, text_flaw, _describe_content(answer), hint=_thinking_hint)


def arithmetic(profile: Profile, answer: ParsedAnswer) -> Observation:
    return _grade(profile, answer, number_flaw, _describe_content(answer), hint=_thinking_hint)


def stream(profile: Profile, answer: ParsedAnswer) -> Observation:
    def find_flaw(candidate: ParsedAnswer) -> str | None:
        flaw = text_flaw(candidate)
        return flaw if flaw is not None or _is_over(profile, candidate) else "the stream ends without [DONE]"

    end = f"finish_reason {answer.finish}{' and [DONE]' if answer.done else ''}"
    return _grade(profile, answer, find_flaw, f"{_describe_content(answer)}, {end}", hint=_thinking_hint)


def reasoning(profile: Profile, answer: ParsedAnswer) -> Observation:
    """Thoughts must be in the reasoning field and the answer in the content; untested without thoughts."""
    after_mending = mended(answer, profile)
    if not after_mending.reasoning.strip() and not leaks_thoughts(answer.content):
        return Observation("untested", "it never thinks" if profile.thinking == "never" else "it did not think")
    if answer.finish == "length" and not after_mending.content.strip():
        return Observation("untested", explain_no_content(answer))
    good = f"{len(answer.reasoning)} characters of thoughts in their field, then {short(answer.content)}"
    return _grade(profile, answer, text_flaw, good, hint=_thinking_hint)


def thinking_on(profile: Profile, answer: ParsedAnswer) -> Observation:
    thoughts = mended(answer, profile).reasoning.strip()
    if thoughts or leaks_thoughts(answer.content):
        return Observation("yes", f"asked to think, it did: {short(thoughts or answer.content)}")
    return Observation("no", f"asked to think, it did not: {short(answer.content)}")


def thinking_off(profile: Profile, answer: ParsedAnswer) -> Observation:
    thoughts = mended(answer, profile).reasoning.strip()
    if thoughts or leaks_thoughts(answer.content):
        return Observation("no", f"asked not to think, it filled its reasoning: {short(thoughts or answer.content)}")
    if not answer.content.strip():
        return Observation("no", explain_no_content(answer))
    return Observation("yes", f"asked not to think, it said {short(answer.content)}")


def tool_auto(profile: Profile, answer: ParsedAnswer) -> Observation:
    return _grade_call(profile, answer, lambda candidate: call_flaw(candidate, "get_weather", "Oslo"))


def tool_stream(profile: Profile, answer: ParsedAnswer) -> Observation:
    def find_flaw(candidate: ParsedAnswer) -> str | None:
        flaw = call_flaw(candidate, "get_weather", "Oslo")
        return flaw if flaw is not None or _is_over(profile, candidate) else "the stream ends without [DONE]"

    return _grade_call(profile, answer, find_flaw)


def _is_over(profile: Profile, answer: ParsedAnswer) -> bool:
    return answer.done or profile.ends_without_done


def tool_required(profile: Profile, answer: ParsedAnswer) -> Observation:
    return _grade_call(profile, answer, lambda candidate: call_flaw(candidate, None, None), "required was not obeyed: ")


def tool_named(profile: Profile, answer: ParsedAnswer) -> Observation:
    return _grade_call(
        profile, answer, lambda candidate: call_flaw(candidate, "get_time", None), "get_time was named: "
    )


def tool_parallel(profile: Profile, answer: ParsedAnswer) -> Observation:
    return _grade_call(profile, answer, calls_flaw)


def thoughts_kept(profile: Profile, answer: ParsedAnswer) -> Observation:
    """Told by the tokens of the prompt: each word of the thought is at least one."""
    if not answer.prompt_tokens:
        return Observation("untested", "it does not report the tokens of a prompt")
    counted = f"a prompt with a thought of {THOUGHT_WORDS} words was counted as {answer.prompt_tokens:,} tokens"
    if answer.prompt_tokens > THOUGHT_WORDS:
        return Observation("yes", counted)
    return Observation("no", f"{counted}: its template drops the thoughts of earlier steps")


def json_schema(profile: Profile, answer: ParsedAnswer) -> Observation:
    return _grade(profile, answer, json_flaw, _describe_content(answer))


def window(profile: Profile, answer: ParsedAnswer) -> Observation:
    """An answer of any kind fails this check: the backend had to refuse a prompt over its window."""
    window = f"{profile.window:,}"
    if profile.window is not None and 0 < answer.prompt_tokens <= profile.window:
        return Observation(
            "no", f"a prompt of more than {window} tokens was cut to {answer.prompt_tokens:,} and answered"
        )
    return Observation("no", f"a prompt of more than {window} tokens was answered, though it reports that window")


# -- grading with a validator ------------------------------------------------------------------------------------------


def _grade(
    profile: Profile,
    answer: ParsedAnswer,
    find_flaw: Validator,
    good: str,
    tools: Iterable[Any] = (),
    hint: Callable[[Profile, ParsedAnswer], str] = lambda *_: "",
) -> Observation:
    """Grade the answer by its flaw, before and after mending. `good`: the description of an answer without a flaw.
    `tools`: the tools offered in the request. `hint`: advice that is added to the description of a flaw."""
    flaw = find_flaw(answer)
    if flaw is None:
        return Observation("yes", good)
    remaining_flaw = find_flaw(mended(answer, profile, tools))
    if remaining_flaw is None:
        return Observation("mended", flaw + hint(profile, answer))
    return Observation("no", remaining_flaw + hint(profile, answer))


def _grade_call(profile: Profile, answer: ParsedAnswer, find_flaw: Validator, prefix: str = "") -> Observation:
    observation = _grade(profile, answer, find_flaw, _describe_calls(answer), TOOLS, _tool_hint)
    if observation.result == "yes":
        return observation
    return Observation(observation.result, prefix + observation.seen)


def _tool_hint(profile: Profile, answer: ParsedAnswer) -> str:
    """Suggest launch flags only when the answer has no call: another parser would not correct a wrong call."""
    parser_may_help = not answer.calls and not is_garbage(answer.content)
    return f"; its family needs {profile.tool_flags}" if profile.tool_flags and parser_may_help else ""


def _thinking_hint(profile: Profile, answer: ParsedAnswer) -> str:
    misplaced = leaks_thoughts(answer.content) or (answer.reasoning and answer.finish != "length")
    return f"; its family needs {profile.reasoning_flags}" if profile.reasoning_flags and misplaced else ""


def _describe_content(answer: ParsedAnswer) -> str:
    return f"said {short(answer.content)}"


def _describe_calls(answer: ParsedAnswer) -> str:
    return "called " + ", ".join(f"{name}({arguments})" for name, arguments in answer.calls[:4])


# -- flaws: the first one of an answer, as a text for the operator ---------------------------------------------------


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
