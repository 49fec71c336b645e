"""The score in a judge's answer: by a JSON path, by a pattern, or where answers usually have it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from gateway.config.units import number_of

FindScore = Callable[[str], float | None]

TEXT_MOST = 100_000  # characters of an answer in which a score is looked for
_FENCED = re.compile(r"```(?:json)?\s*(.*?)```", re.S)
_NAMED = re.compile(
    r"\b(?:score|rating|grade|points?)\b"
    r"(?:\s*[(\[][^()\[\]\n]{1,40}[)\]](?=[\s*_|]*[:=|]))?"  # a scale: `Score (1-5): 4`
    r"\W{0,5}?((?:(?<!\w)[-\u2212])?(?:\d+(?:\.\d+)?|(?<!\.)\.\d+))"
    r"(?!\d|\.\d|[-\u2013\u2014]\d|\s+to\s+\d)",  # no number of a scale: `points 1-5`
    re.I,
)
_ALONE = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*(?:/\s*\d+|out of \d+)?\s*[.!]?\s*", re.I)
_KEYS = ("score", "rating", "grade", "points")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(-?\d+)\]")


def usual_score(text: str) -> float | None:
    """A JSON object's `score`, `rating`, `grade` or `points`; a number behind one of these words, the last one, because
    judges reason first; or an answer that is nothing but a number."""
    text = text[-TEXT_MOST:]
    value = _json_in(text)
    if isinstance(value, dict):
        for key in _KEYS:
            if (found := number_of(value.get(key))) is not None:
                return found
    named = _NAMED.findall(text)
    if named:
        return number_of(named[-1].replace("\u2212", "-"))  # a minus as in print
    alone = _ALONE.fullmatch(text)
    return number_of(alone[1]) if alone is not None else None


def by_path(path: str) -> FindScore:
    """`scores.overall`, `$.criteria[0].score`: a path into the JSON of the answer. Raises ValueError for any other
    text."""
    steps: list[str | int] = []
    rest = path.removeprefix("$").removeprefix(".")
    while step := _STEP.match(rest):
        steps.append(step[1] if step[1] is not None else int(step[2]))
        rest = rest[step.end() :]
    if rest or not steps:
        raise ValueError(f"'{path}' is no path: write keys and indexes, such as scores.overall or criteria[0].score")

    def find(text: str) -> float | None:
        value = _json_in(text[-TEXT_MOST:])
        for step in steps:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return number_of(value)

    return find


def by_pattern(pattern: str) -> FindScore:
    """A regular expression whose first group is the score; the last match counts. Raises ValueError."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"'{pattern}' is no regular expression: {error}") from None
    if not compiled.groups:
        raise ValueError(f"'{pattern}' has no group: put the number in brackets, as in Score: (\\d+)")

    def find(text: str) -> float | None:
        found = None
        for found in compiled.finditer(text[-TEXT_MOST:]):  # noqa: B007
            pass
        return number_of(found[1]) if found is not None else None

    return find


def _json_in(text: str) -> Any:
    """The JSON of an answer: all of it, or in a fence, or its last object; None without JSON."""
    candidates = [text, *reversed(_FENCED.findall(text))]
    at = text.rfind("{")
    if at >= 0:
        candidates += [text[text.find("{") : text.rfind("}") + 1], text[at : text.rfind("}") + 1]]
    for candidate in candidates:
        try:
            value = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict | list):
            return value
    return None
