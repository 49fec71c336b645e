"""What servers say when a prompt, or the limit of its answer, is beyond their window, and the numbers in it.

A window is learned only from a message that is one of the texts of known_errors.toml as a whole (`Overflow.sound`). Any
other message counts for the refused request alone (`guess_overflow`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gateway.inspection.known_errors import is_validation, whole, within, without_quotations

LEAST_WINDOW = 256  # tokens; no server is started with less, so smaller numbers are not believed


class Overflow(NamedTuple):
    """The window and the prompt that a refusal names, in tokens. `least`: the prompt has at least so many, and was not
    counted further. `limit_only`: the prompt fits, the answer's limit does not. `sound`: the message is one of
    the texts and its numbers are consistent."""

    window: int | None = None
    prompt: int | None = None
    least: bool = False
    limit_only: bool = False
    sound: bool = False


def read_overflow(message: str) -> Overflow | None:
    """The numbers of a message that is, as a whole, a known text about a prompt or a limit beyond the window."""
    found = whole("overflows", message)
    return None if found is None else _numbers(found[0])


def _numbers(found: re.Match[str]) -> Overflow:
    read = {name: int(value) for name, value in found.groupdict().items() if value and name != "least"}
    if "most" in read:
        return Overflow(read["most"], read["prompt"])
    window, prompt, limit, total = read["window"], read.get("prompt"), read.get("limit", 0), read.get("total")
    prompt = prompt and prompt + read.get("more", 0)
    least = bool(found.groupdict().get("least"))
    asked = (prompt or 0) + limit
    sound = window >= LEAST_WINDOW and (asked > window or (not limit and asked == window))
    sound = sound and (total is None or total == asked)
    return Overflow(window, prompt, least, limit_only=prompt is None or (prompt < window and limit > 0), sound=sound)


def guess_overflow(message: str) -> tuple[str, Overflow] | None:
    """(phrase, numbers) of any other message that mentions a window outside of its quotations."""
    if is_validation(message):
        return None
    plain = without_quotations(message)
    found = within("like_overflows", plain)
    if found is None:
        return None
    window, prompt = _number("like_windows", plain), _number("like_prompts", plain)
    fits = window is not None and prompt is not None and prompt < window
    least = "at least" in plain
    return found[0], Overflow(window, prompt, least, limit_only=fits or "cannot be greater than max_model_len" in plain)


def _number(table: str, text: str) -> int | None:
    found = within(table, text)
    return None if found is None else int(found[1])
