"""`server.env_file`: lines of `NAME=value`, with `export`, quotes and comments as a shell would read them."""

from __future__ import annotations

import re

from gateway.config.problems import Problem

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*)", re.ASCII)
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?')
_SINGLE = re.compile(r"'([^']*)'\s*(?:#.*)?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def parse_env(text: str, file: str) -> tuple[dict[str, str], list[Problem]]:
    """The variables, and a problem for each line that is not one. Values are never part of a problem."""
    found: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        value = _unquote(match[2]) if match else None
        if "\0" in line:
            problems.append(Problem(file, number, "", "a NUL character: this is no text"))
        elif match is None:
            problems.append(Problem(file, number, "", "not a line of NAME=value"))
        elif value is None:
            problems.append(Problem(file, number, match[1], "a quote that is not closed on its line"))
        else:
            found[match[1]] = value
    return found, problems


def _unquote(text: str) -> str | None:
    if text.startswith('"'):
        match = _DOUBLE.fullmatch(text)
        return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), match[1]) if match else None
    if text.startswith("'"):
        match = _SINGLE.fullmatch(text)
        return match[1] if match else None
    return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].rstrip()
