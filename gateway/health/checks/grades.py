"""From what an answer says to an observation: right as it came, right once mended, or wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gateway.domain.facts import Observation
from gateway.health.checks import flaws
from gateway.health.checks.asks import TOOLS
from gateway.health.checks.reply import Said, mended, short
from gateway.health.checks.subject import Subject

Flaw = Callable[[Said], str | None]


def plain(subject: Subject, said: Said) -> Observation:
    return _graded(subject, said, flaws.in_words, _words(said), hint=_thinking_hint)


def arithmetic(subject: Subject, said: Said) -> Observation:
    return _graded(subject, said, flaws.in_number, _words(said), hint=_thinking_hint)


def stream(subject: Subject, said: Said) -> Observation:
    good = f"{_words(said)}, finish_reason {said.finish} and [DONE]"
    return _graded(subject, said, flaws.in_stream, good, hint=_thinking_hint)


def reasoning(subject: Subject, said: Said) -> Observation:
    """Thoughts in their field, and the answer beside them. What does not think proves nothing."""
    after = mended(said, subject)
    if not after.reasoning.strip() and not flaws.leaks_thoughts(said.content):
        return Observation("untested", "it never thinks" if subject.thinking == "never" else "it did not think")
    if said.finish == "length" and not after.content.strip():
        return Observation("untested", flaws.nothing(said))
    good = f"{len(said.reasoning)} characters of thoughts in their field, then {short(said.content)}"
    return _graded(subject, said, flaws.in_words, good, hint=_thinking_hint)


def thinking_on(subject: Subject, said: Said) -> Observation:
    thoughts = mended(said, subject).reasoning.strip()
    if thoughts or flaws.leaks_thoughts(said.content):
        return Observation("yes", f"asked to think, it did: {short(thoughts or said.content)}")
    return Observation("no", f"asked to think, it did not: {short(said.content)}")


def thinking_off(subject: Subject, said: Said) -> Observation:
    thoughts = mended(said, subject).reasoning.strip()
    if thoughts or flaws.leaks_thoughts(said.content):
        return Observation("no", f"asked not to think, it filled its reasoning: {short(thoughts or said.content)}")
    if not said.content.strip():
        return Observation("no", flaws.nothing(said))
    return Observation("yes", f"asked not to think, it said {short(said.content)}")


def tool_auto(subject: Subject, said: Said) -> Observation:
    return _graded_call(subject, said, lambda it: flaws.in_call(it, "get_weather", "Oslo"))


def tool_stream(subject: Subject, said: Said) -> Observation:
    def flaw(it: Said) -> str | None:
        wrong = flaws.in_call(it, "get_weather", "Oslo")
        return wrong if wrong is not None or it.done else "the stream ends without [DONE]"

    return _graded_call(subject, said, flaw)


def tool_required(subject: Subject, said: Said) -> Observation:
    return _graded_call(subject, said, lambda it: flaws.in_call(it, None, None), "required was not obeyed: ")


def tool_named(subject: Subject, said: Said) -> Observation:
    return _graded_call(subject, said, lambda it: flaws.in_call(it, "get_time", None), "get_time was named: ")


def tool_parallel(subject: Subject, said: Said) -> Observation:
    return _graded_call(subject, said, flaws.in_calls)


def json_schema(subject: Subject, said: Said) -> Observation:
    return _graded(subject, said, flaws.in_json, _words(said))


def window(subject: Subject, said: Said) -> Observation:
    """It was answered, so it was not refused."""
    told = f"{subject.window:,}"
    if subject.window is not None and 0 < said.prompt_tokens <= subject.window:
        return Observation("no", f"a prompt of more than {told} tokens was cut to {said.prompt_tokens:,} and answered")
    return Observation("no", f"a prompt of more than {told} tokens was answered, though that is the window it tells")


# -- how they are graded ----------------------------------------------------------------------------------------------


def _graded(
    subject: Subject,
    said: Said,
    flaw: Flaw,
    good: str,
    tools: Iterable[Any] = (),
    hint: Callable[[Subject, Said], str] = lambda *_: "",
) -> Observation:
    wrong = flaw(said)
    if wrong is None:
        return Observation("yes", good)
    still = flaw(mended(said, subject, tools))
    if still is None:
        return Observation("mended", wrong + hint(subject, said))
    return Observation("no", still + hint(subject, said))


def _graded_call(subject: Subject, said: Said, flaw: Flaw, before: str = "") -> Observation:
    observation = _graded(subject, said, flaw, _calls(said), TOOLS, _tool_hint)
    if observation.result == "yes":
        return observation
    return Observation(observation.result, before + observation.seen)


def _tool_hint(subject: Subject, said: Said) -> str:
    """Only where nothing was called: another parser changes nothing about what is called."""
    unread = not said.calls and not flaws.is_garbage(said.content)
    return f"; its family needs {subject.tool_flags}" if subject.tool_flags and unread else ""


def _thinking_hint(subject: Subject, said: Said) -> str:
    misplaced = flaws.leaks_thoughts(said.content) or (said.reasoning and said.finish != "length")
    return f"; its family needs {subject.reasoning_flags}" if subject.reasoning_flags and misplaced else ""


def _words(said: Said) -> str:
    return f"said {short(said.content)}"


def _calls(said: Said) -> str:
    return "called " + ", ".join(f"{name}({arguments})" for name, arguments in said.calls[:4])
