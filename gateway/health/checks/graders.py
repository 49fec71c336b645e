"""The grade of an answer to a check, as an observation: right as it came (yes), right once mended, or wrong (no)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gateway.domain.facts import Observation
from gateway.health.checks import validators
from gateway.health.checks.profile import Profile
from gateway.health.checks.reply import ParsedAnswer, mended, short
from gateway.health.checks.requests import TOOLS

Validator = Callable[[ParsedAnswer], str | None]


def plain(profile: Profile, said: ParsedAnswer) -> Observation:
    return _graded(profile, said, validators.text_flaw, _words(said), hint=_thinking_hint)


def arithmetic(profile: Profile, said: ParsedAnswer) -> Observation:
    return _graded(profile, said, validators.number_flaw, _words(said), hint=_thinking_hint)


def stream(profile: Profile, said: ParsedAnswer) -> Observation:
    good = f"{_words(said)}, finish_reason {said.finish} and [DONE]"
    return _graded(profile, said, validators.stream_flaw, good, hint=_thinking_hint)


def reasoning(profile: Profile, said: ParsedAnswer) -> Observation:
    """Thoughts must be in their field, and the answer beside them. An answer without thoughts shows nothing."""
    after = mended(said, profile)
    if not after.reasoning.strip() and not validators.leaks_thoughts(said.content):
        return Observation("untested", "it never thinks" if profile.thinking == "never" else "it did not think")
    if said.finish == "length" and not after.content.strip():
        return Observation("untested", validators.explain_no_content(said))
    good = f"{len(said.reasoning)} characters of thoughts in their field, then {short(said.content)}"
    return _graded(profile, said, validators.text_flaw, good, hint=_thinking_hint)


def thinking_on(profile: Profile, said: ParsedAnswer) -> Observation:
    thoughts = mended(said, profile).reasoning.strip()
    if thoughts or validators.leaks_thoughts(said.content):
        return Observation("yes", f"asked to think, it did: {short(thoughts or said.content)}")
    return Observation("no", f"asked to think, it did not: {short(said.content)}")


def thinking_off(profile: Profile, said: ParsedAnswer) -> Observation:
    thoughts = mended(said, profile).reasoning.strip()
    if thoughts or validators.leaks_thoughts(said.content):
        return Observation("no", f"asked not to think, it filled its reasoning: {short(thoughts or said.content)}")
    if not said.content.strip():
        return Observation("no", validators.explain_no_content(said))
    return Observation("yes", f"asked not to think, it said {short(said.content)}")


def tool_auto(profile: Profile, said: ParsedAnswer) -> Observation:
    return _graded_call(profile, said, lambda it: validators.call_flaw(it, "get_weather", "Oslo"))


def tool_stream(profile: Profile, said: ParsedAnswer) -> Observation:
    def flaw(it: ParsedAnswer) -> str | None:
        wrong = validators.call_flaw(it, "get_weather", "Oslo")
        return wrong if wrong is not None or it.done else "the stream ends without [DONE]"

    return _graded_call(profile, said, flaw)


def tool_required(profile: Profile, said: ParsedAnswer) -> Observation:
    return _graded_call(profile, said, lambda it: validators.call_flaw(it, None, None), "required was not obeyed: ")


def tool_named(profile: Profile, said: ParsedAnswer) -> Observation:
    return _graded_call(profile, said, lambda it: validators.call_flaw(it, "get_time", None), "get_time was named: ")


def tool_parallel(profile: Profile, said: ParsedAnswer) -> Observation:
    return _graded_call(profile, said, validators.calls_flaw)


def json_schema(profile: Profile, said: ParsedAnswer) -> Observation:
    return _graded(profile, said, validators.json_flaw, _words(said))


def window(profile: Profile, said: ParsedAnswer) -> Observation:
    """It was answered, so it was not refused."""
    window = f"{profile.window:,}"
    if profile.window is not None and 0 < said.prompt_tokens <= profile.window:
        return Observation(
            "no", f"a prompt of more than {window} tokens was cut to {said.prompt_tokens:,} and answered"
        )
    return Observation("no", f"a prompt of more than {window} tokens was answered, though that is the window it tells")


# -- how they are graded ----------------------------------------------------------------------------------------------


def _graded(
    profile: Profile,
    said: ParsedAnswer,
    flaw: Validator,
    good: str,
    tools: Iterable[Any] = (),
    hint: Callable[[Profile, ParsedAnswer], str] = lambda *_: "",
) -> Observation:
    wrong = flaw(said)
    if wrong is None:
        return Observation("yes", good)
    still = flaw(mended(said, profile, tools))
    if still is None:
        return Observation("mended", wrong + hint(profile, said))
    return Observation("no", still + hint(profile, said))


def _graded_call(profile: Profile, said: ParsedAnswer, flaw: Validator, before: str = "") -> Observation:
    observation = _graded(profile, said, flaw, _calls(said), TOOLS, _tool_hint)
    if observation.result == "yes":
        return observation
    return Observation(observation.result, before + observation.seen)


def _tool_hint(profile: Profile, said: ParsedAnswer) -> str:
    """Only where nothing was called: another parser changes nothing about what is called."""
    unread = not said.calls and not validators.is_garbage(said.content)
    return f"; its family needs {profile.tool_flags}" if profile.tool_flags and unread else ""


def _thinking_hint(profile: Profile, said: ParsedAnswer) -> str:
    misplaced = validators.leaks_thoughts(said.content) or (said.reasoning and said.finish != "length")
    return f"; its family needs {profile.reasoning_flags}" if profile.reasoning_flags and misplaced else ""


def _words(said: ParsedAnswer) -> str:
    return f"said {short(said.content)}"


def _calls(said: ParsedAnswer) -> str:
    return "called " + ", ".join(f"{name}({arguments})" for name, arguments in said.calls[:4])
