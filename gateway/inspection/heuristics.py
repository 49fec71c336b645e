"""Signs in an answer's text and usage: that it begins with a thought, that one ended in it, that it is garbage, that
part of it was lost. Pure functions, for streams and whole answers alike."""

from __future__ import annotations

import re
from typing import Any

from gateway.domain.usage import read_usage
from gateway.inspection.reasoning import REASONING, THINK, Thoughts

GARBAGE_LEAST = 20  # characters: a shorter line of one character may be an answer
GARBAGE_SURE = 2000  # characters of one kind after which nothing can make it an answer
SWALLOWED_FROM = 16  # tokens; a shorter answer says too little of how many bytes its tokens have
_CLOSED_ALONE = re.compile(r"(?:^|\n)[ \t]*</think>[ \t]*(?:\n|$)")
_STYLES = (THINK, *dict.fromkeys(style for style in REASONING.values() if style is not THINK))


def opened(text: str, usual: Thoughts | None = None) -> Thoughts | None:
    """How thoughts are marked that content beginning with `text` may begin with; None = it begins with none."""
    start = text.lstrip()
    if not start:
        return None
    if start[0] not in "<[":  # words, which open thoughts only where the model is known to write them
        styles: tuple[Thoughts, ...] = (usual,) if usual is not None else ()
    else:
        styles = (usual, *_STYLES) if usual is not None else _STYLES
    for style in styles:
        if any(opener.startswith(start) or start.startswith(opener) for opener in style.openers):
            return style
    return None


def closes_alone(text: str) -> bool:
    """Does a `</think>` stand on a line of its own here, as a template writes it? (In a sentence it is only a word.)"""
    if "</think>" not in text:
        return False
    found = _CLOSED_ALONE.search(text)
    return found is not None and text.count("```", 0, found.start()) % 2 == 0


def begins_as_garbage(text: str) -> bool | None:
    """Is a text garbage that begins with `text` (no white space before it)? None = that depends on what follows."""
    if text.startswith("!!!!!"):  # as NVFP4 without `--moe-backend marlin` writes it
        return True
    if not text:
        return None
    if text.rstrip().strip(text[0]):
        return False
    return True if len(text) >= GARBAGE_SURE else None


def is_garbage(text: str, least: int = GARBAGE_LEAST) -> bool:
    """One character again and again, as an engine writes that computes nonsense. `least`: characters from which a text
    of one character is no answer any more."""
    text = text.strip()
    found = begins_as_garbage(text)
    return len(text) >= least if found is None else found


def swallowed(size: int, usage: Any) -> bool:
    """Were far more tokens spent than so many bytes can be? Then a parser took the rest for a call, and lost it."""
    spent = read_usage(usage).completion
    return size > 0 and spent >= SWALLOWED_FROM and size < spent * 1.2


def silence_kind(usage: Any) -> str:
    """The violation of an answer in which nothing was said: with tokens spent it is a parser that swallowed them."""
    return "nothing_said" if read_usage(usage).completion > 1 else "empty"
