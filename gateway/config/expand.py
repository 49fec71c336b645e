"""Variables: `${VAR}`, `${VAR:-default}` and `${file:/path}` in values, and the lines of `server.env_file`.

References are replaced once the YAML is parsed, so no value changes the structure of the file. `$${` is a literal `${`.
A replaced value remembers how it was written, so that no error ever shows a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from gateway.config.document import Plain, plain_value
from gateway.config.problems import Path, Problem, Report
from gateway.config.secret import ExpandedText
from gateway.config.sources import Sources
from gateway.config.suggest import did_you_mean

MAX_SECRET = 64 * 1024  # bytes of a ${file:...}
_REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|(\$\{)")
_UNDECODED = re.compile("[\ud800-\udfff]")  # how Python shows bytes of the environment that are no text
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DROPPED = object()
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*)", re.ASCII)
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?')
_SINGLE = re.compile(r"'([^']*)'\s*(?:#.*)?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class ExpandError(Exception):
    """One reference that cannot be replaced: `message` and `hint`."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class Expander:
    """Replaces references by the variables in `environ` and by files (relative to `folder`), read through `sources`."""

    def __init__(
        self, environ: Mapping[str, str], folder: FilePath, sources: Sources, env_file: str | None = None
    ) -> None:
        self.environ = environ
        self.folder = folder
        self.sources = sources
        self.used: dict[str, str] = {}  # a reference as it is written -> its value
        self.where = f"set it in the environment or in {env_file}" if env_file else "set it in the environment"

    def tree(self, data: dict[str, Any], report: Report) -> dict[str, Any]:
        """`data` with every string expanded. What fails is reported and left out (`report.dropped`), and a list of
        which nothing remains with it."""
        found: dict[str, Any] = self._tree(data, report, ())
        for name, value in self.used.items():
            report.hide(value, name)
        report.renumber(report.dropped)
        return found

    def _tree(self, value: Any, report: Report, path: Path) -> Any:
        if isinstance(value, dict):
            items = ((key, self._tree(inner, report, (*path, key))) for key, inner in value.items())
            return {key: inner for key, inner in items if inner is not _DROPPED}
        if isinstance(value, list):
            members = [self._tree(inner, report, (*path, i)) for i, inner in enumerate(value)]
            kept = [inner for inner in members if inner is not _DROPPED]
            if members and not kept:
                report.dropped.add(path)
                return _DROPPED
            return kept
        if not isinstance(value, str) or "${" not in value or _is_for_the_engine(path):
            return value
        try:
            text = self.text(value)
        except ExpandError as error:
            report.error(path, error.message, error.hint)
            report.dropped.add(path)
            return _DROPPED
        # free values: `${T}` may be a number there
        if isinstance(value, Plain) and not {"params", "fixed"}.isdisjoint(path):
            report.outside[path] = str(value)
            return plain_value(text)
        report.came_from_outside(path, text, str(value))
        return ExpandedText(text, str(value))

    def text(self, value: str) -> str:
        """One string expanded. Raises `ExpandError`."""
        text = _REFERENCE.sub(self._replace, value)
        if not text.isprintable() and _UNDECODED.search(text):
            raise ExpandError("a variable in it holds bytes that are not UTF-8 text")
        return text

    def _replace(self, match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        if match[2]:
            raise ExpandError("'${' without its '}', or one ${...} inside another", "a literal '${' is written '$${'")
        inside = match[1]
        if inside.startswith("file:"):
            return self._file(inside.removeprefix("file:"))
        name, has_default, default = inside.partition(":-")
        if not _NAME.fullmatch(name):
            raise ExpandError(
                "'${...}' must hold a NAME, NAME:-default or file:/path", "a literal '${' is written '$${'"
            )
        if found := self.environ.get(name, ""):
            self.used[f"${{{name}}}"] = found
            return found
        if has_default:
            return default
        if name in self.environ:
            raise ExpandError(f"variable '{name}' is empty", f"set it, or write ${{{name}:-}} if it may be")
        hint = did_you_mean(name, self.environ) if "_" in name else None
        raise ExpandError(f"variable '{name}' is not set", hint or f"{self.where}, or write ${{{name}:-default}}")

    def _file(self, name: str) -> str:
        try:
            content = self.sources.read(self.folder / name)
            if len(content) > MAX_SECRET:
                raise ExpandError(f"file '{name}' is larger than {MAX_SECRET // 1024} KiB")
            text = content.decode().rstrip("\r\n")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "not readable as text"
            raise ExpandError(f"file '{name}' cannot be read", str(why).lower()) from None
        if not text:
            raise ExpandError(f"file '{name}' is empty")
        self.used[f"${{file:{name}}}"] = text
        return text


def _is_for_the_engine(path: Path) -> bool:
    """Whether the value stands in a launch block: its references are for the machine that starts the engine, and stay
    references when units and scripts are rendered."""
    return len(path) > 2 and path[0] == "backends" and path[2] in ("launch", "profiles", "start", "stop")


def parse_env(text: str, file: str) -> tuple[dict[str, str], list[Problem]]:
    """The variables of an env file (lines of `NAME=value`, with `export`, quotes and comments as a shell would read
    them), and a problem for each line that is not one. Values are never part of a problem."""
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
