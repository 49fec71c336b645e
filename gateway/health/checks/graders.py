"""Grades the answer to a check: correct as received (yes), correct once mended (mended), or wrong (no)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gateway.domain.facts import Observation
from gateway.health.checks import validators
from gateway.health.checks.profile import Profile
from gateway.health.checks.reply import ParsedAnswer, mended, short
from gateway.health.checks.requests import THOUGHT_WORDS, TOOLS

Validator = Callable[[ParsedAnswer], str | None]  # returns the description of a flaw; None if there is none


def life(profile: Profile, answer: ParsedAnswer) -> Observation:
    return Observation("yes", f"answered with {answer.tokens} tokens")


def plain(profile: Profile, answer: ParsedAnswer) -> Observation:
    return _grade(profile, answer, validators.text_flaw, _describe_content(answer), hint=_thinking_hint)


def arithmetic(profile: Profile, answer: ParsedAnswer) -> Observation:
    return _grade(profile, answer, validators.number_flaw, _describe_content(answer), hint=_thinking_hint)


def stream(profile: Profile, answer: ParsedAnswer) -> Observation:
    def find_flaw(candidate: ParsedAnswer) -> str | None:
        flaw = validators.text_flaw(candidate)
        return flaw if flaw is not None or _is_over(profile, candidate) else "the stream ends without [DONE]"

    end = f"finish_reason {answer.finish}{' and [DONE]' if answer.done else ''}"
    return _grade(profile, answer, find_flaw, f"{_describe_content(answer)}, {end}", hint=_thinking_hint)


def reasoning(profile: Profile, answer: ParsedAnswer) -> Observation:
    """Thoughts must be in the reasoning field and the answer in the content. Without any thoughts the check stays
    untested."""
    after_mending = mended(answer, profile)
    if not after_mending.reasoning.strip() and not validators.leaks_thoughts(answer.content):
        return Observation("untested", "it never thinks" if profile.thinking == "never" else "it did not think")
    if answer.finish == "length" and not after_mending.content.strip():
        return Observation("untested", validators.explain_no_content(answer))
    good = f"{len(answer.reasoning)} characters of thoughts in their field, then {short(answer.content)}"
    return _grade(profile, answer, validators.text_flaw, good, hint=_thinking_hint)


def thinking_on(profile: Profile, answer: ParsedAnswer) -> Observation:
    thoughts = mended(answer, profile).reasoning.strip()
    if thoughts or validators.leaks_thoughts(answer.content):
        return Observation("yes", f"asked to think, it did: {short(thoughts or answer.content)}")
    return Observation("no", f"asked to think, it did not: {short(answer.content)}")


def thinking_off(profile: Profile, answer: ParsedAnswer) -> Observation:
    thoughts = mended(answer, profile).reasoning.strip()
    if thoughts or validators.leaks_thoughts(answer.content):
        return Observation("no", f"asked not to think, it filled its reasoning: {short(thoughts or answer.content)}")
    if not answer.content.strip():
        return Observation("no", validators.explain_no_content(answer))
    return Observation("yes", f"asked not to think, it said {short(answer.content)}")


def tool_auto(profile: Profile, answer: ParsedAnswer) -> Observation:
    return _grade_call(profile, answer, lambda candidate: validators.call_flaw(candidate, "get_weather", "Oslo"))


def tool_stream(profile: Profile, answer: ParsedAnswer) -> Observation:
    def find_flaw(candidate: ParsedAnswer) -> str | None:
        flaw = validators.call_flaw(candidate, "get_weather", "Oslo")
        return flaw if flaw is not None or _is_over(profile, candidate) else "the stream ends without [DONE]"

    return _grade_call(profile, answer, find_flaw)


def _is_over(profile: Profile, answer: ParsedAnswer) -> bool:
    return answer.done or profile.ends_without_done


def tool_required(profile: Profile, answer: ParsedAnswer) -> Observation:
    return _grade_call(
        profile, answer, lambda candidate: validators.call_flaw(candidate, None, None), "required was not obeyed: "
    )


def tool_named(profile: Profile, answer: ParsedAnswer) -> Observation:
    return _grade_call(
        profile, answer, lambda candidate: validators.call_flaw(candidate, "get_time", None), "get_time was named: "
    )


def tool_parallel(profile: Profile, answer: ParsedAnswer) -> Observation:
    return _grade_call(profile, answer, validators.calls_flaw)


def thoughts_kept(profile: Profile, answer: ParsedAnswer) -> Observation:
    """Told by the tokens of the prompt: each word of the thought is at least one."""
    if not answer.prompt_tokens:
        return Observation("untested", "it does not report the tokens of a prompt")
    counted = f"a prompt with a thought of {THOUGHT_WORDS} words was counted as {answer.prompt_tokens:,} tokens"
    if answer.prompt_tokens > THOUGHT_WORDS:
        return Observation("yes", counted)
    return Observation("no", f"{counted}: its template drops the thoughts of earlier steps")


def json_schema(profile: Profile, answer: ParsedAnswer) -> Observation:
    return _grade(profile, answer, validators.json_flaw, _describe_content(answer))


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
    parser_may_help = not answer.calls and not validators.is_garbage(answer.content)
    return f"; its family needs {profile.tool_flags}" if profile.tool_flags and parser_may_help else ""


def _thinking_hint(profile: Profile, answer: ParsedAnswer) -> str:
    misplaced = validators.leaks_thoughts(answer.content) or (answer.reasoning and answer.finish != "length")
    return f"; its family needs {profile.reasoning_flags}" if profile.reasoning_flags and misplaced else ""


def _describe_content(answer: ParsedAnswer) -> str:
    return f"said {short(answer.content)}"


def _describe_calls(answer: ParsedAnswer) -> str:
    return "called " + ", ".join(f"{name}({arguments})" for name, arguments in answer.calls[:4])
