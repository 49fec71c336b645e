"""Heuristics over an answer's text and usage: is it plain, does it begin with thoughts, did thoughts end in it, is it
garbage, was part of it lost? Pure functions, used for streams and whole answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.domain.tokens import read_usage
from gateway.inspection.markers import markers_of
from gateway.inspection.policy import InspectionPolicy
from gateway.inspection.reasoning import REASONING, THINK, Thoughts

GARBAGE_LEAST = 20  # characters: a shorter line of one character may be an answer
GARBAGE_SURE = 2000  # repetitions of one character after which the text is garbage, whatever follows
SWALLOWED_FROM = 16  # tokens; in shorter answers the number of bytes per token varies too much
_CLOSED_ALONE = re.compile(
    r"(?:^|\n)[ \t]*</(?:\w+:)?think>[ \t]*(?:\n|$)"
    r"|(?<=[\w.!?:;)])</(?:\w+:)?think>(?=\s*\n|[^\W\d_]|[*#])"  # close behind a word, and no blank behind it
)
_STYLES = (THINK, *dict.fromkeys(style for style in REASONING.values() if style is not THINK))


def opened(text: str, usual: Thoughts | None = None) -> Thoughts | None:
    """The notation of the thoughts that content beginning with `text` may begin with; None = it begins with none."""
    start = text.lstrip()
    if not start:
        return None
    if start[0] not in "<[":  # words open thoughts only if the model is known to use them
        styles: tuple[Thoughts, ...] = (usual,) if usual is not None else ()
    else:
        styles = (usual, *_STYLES) if usual is not None else _STYLES
    for style in styles:
        for opener in style.openers + style.words:  # a generator costs more
            if opener.startswith(start) or start.startswith(opener):
                return style
    return None


def closes_alone(text: str) -> bool:
    """Does the text have a `</think>` outside code that stands where a template or a model writes it: on a line of its
    own, or close behind a word? (Between blanks, or in quotes, it is prose.)"""
    if "think>" not in text:
        return False
    found = _CLOSED_ALONE.search(text)
    return found is not None and text.count("```", 0, found.start()) % 2 == 0


def begins_as_garbage(text: str) -> bool | None:
    """Is a text that begins with `text` (without leading white space) garbage? None = it depends on what follows."""
    second = text[1:2]
    if second.strip() and second != text[0]:  # nearly always
        return False
    if text.startswith("!!!!!"):  # typical for NVFP4 without `--moe-backend marlin`
        return True
    if not text:
        return None
    if text.rstrip().strip(text[0]):
        return False
    return True if len(text) >= GARBAGE_SURE else None


def is_garbage(text: str, least: int = GARBAGE_LEAST) -> bool:
    """Is the text one character repeated, at least `least` times, as a miscomputing engine writes it?"""
    text = text.strip()
    found = begins_as_garbage(text)
    return len(text) >= least if found is None else found


def swallowed(size: int, usage: Any) -> bool:
    """Were far more tokens generated than `size` bytes can have? Then a parser took the rest for a call: lost."""
    spent = read_usage(usage).completion
    return size > 0 and spent >= SWALLOWED_FROM and size < spent * 1.2


def empty_kind(usage: Any) -> str:
    """The violation of an answer without content: `nothing_said` if a parser has lost its tokens, else `empty`."""
    return "nothing_said" if read_usage(usage).completion > 1 else "empty"


# -- plain text --------------------------------------------------------------------------------------------------------

PLAIN_ENDS = ("stop", "length")  # a finish_reason with which nothing is mended


# The fields of a message, beside its content and calls, that may say something.
_ALSO = {
    *("refusal", "reasoning", "reasoning_content", "reasoning_details", "reasoning_text", "thinking"),
    *("function_call", "audio"),
}


def plain_text(message: Mapping[str, Any], finish: object, usual: Thoughts | None) -> str | None:
    """The text of a whole answer's message, if it has nothing else. `usual`: how the model marks thoughts."""
    text, role = message.get("content"), message.get("role")
    if finish not in PLAIN_ENDS or type(text) is not str or not text or text.isspace():
        return None
    if not (role is None or type(role) is str) or message.get("tool_calls") not in (None, []):
        return None
    for name, value in message.items():
        if value is not None and name in _ALSO:
            return None
    return text if begins_plainly(text, usual) else None


def begins_plainly(text: str, usual: Thoughts | None) -> bool:
    """Does this content begin neither with thoughts, as `usual` marks them, nor as garbage, and does it end none?"""
    start = text.lstrip()
    return "think>" not in text and opened(start, usual) is None and begins_as_garbage(start) is False


def is_plain_under(policy: InspectionPolicy, text: str) -> bool:
    """Is this whole content, which is not blank, plain text by what the policy looks for?"""
    if policy.must_call or policy.reasoning_field != "as_is" or (policy.schema and text.lstrip()[:1] == "`"):
        return False
    found = policy.thoughts
    if found is not None and (found.implied or any(tag in text for tag in found.tags)):
        return False
    return policy.tools is None or markers_of(tuple(policy.formats)).anywhere.search(text) is None
