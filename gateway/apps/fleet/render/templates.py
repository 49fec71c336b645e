"""The templates of the rendered files (jinja2): those beside this module, and an operator's in their place.

A value gets into a file through a filter that quotes it for its place there; one that passed none is an error, and so
is a name that is not defined. So a template that an operator wrote in a hurry cannot run a word of a launch block."""

from __future__ import annotations

import io
import json
import re
import shlex
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import (
    BaseLoader,
    ChoiceLoader,
    FileSystemLoader,
    PrefixLoader,
    StrictUndefined,
    TemplateError,
    TemplateSyntaxError,
)
from jinja2.sandbox import ImmutableSandboxedEnvironment
from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from gateway.apps.fleet.render.words import comment_lines, shell_word, unit_text

SHIPPED = Path(__file__).with_name("templates")
_PLAIN = re.compile(r"[\w./:,@%+=-]+", re.ASCII)


class BadTemplate(Exception):
    """A template that cannot be used: its file, the line if one is known, and what is wrong with it."""


class QuotedText(str):
    """Text that is safe in its place in the file."""

    __slots__ = ()


class _Environment(ImmutableSandboxedEnvironment):
    # What macros, blocks and `{% set %}` come to is made of literal text and of values that passed a filter.
    concat = staticmethod(lambda parts: QuotedText("".join(parts)))


class Templates:
    """The templates to render with. `directory`: the operator's, which replace shipped ones of the same names, and
    reach these as `default/NAME`. Raises BadTemplate."""

    def __init__(self, directory: Path | None = None) -> None:
        shipped = FileSystemLoader(SHIPPED)
        loaders: list[BaseLoader] = [shipped, PrefixLoader({"default": shipped})]
        if directory is not None:
            _check_names(directory)
            loaders.insert(0, FileSystemLoader(directory))
        self._environment = _Environment(
            loader=ChoiceLoader(loaders),
            undefined=StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            finalize=_checked,
        )
        self._environment.filters |= FILTERS

    def render(self, name: str, values: Mapping[str, Any]) -> QuotedText:
        """The text of one file. Raises BadTemplate."""
        try:
            return QuotedText(self._environment.get_template(name).render(values))
        except Exception as error:
            raise BadTemplate(f"{_place(error, name)}: {_reason(error)}") from None


def _check_names(directory: Path) -> None:
    known = sorted(path.name for path in SHIPPED.glob("*.j2"))
    try:
        given = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise BadTemplate(f"{directory}: {error.strerror}") from None
    for name in given:
        if name not in known:
            raise BadTemplate(f"{directory / name}: no template has this name; there are: {', '.join(known)}")


def _place(error: Exception, name: str) -> str:
    if isinstance(error, TemplateSyntaxError):
        return f"{error.filename or name}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(".j2")]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else name


def _reason(error: Exception) -> str:
    """Without a text that Python's own errors may repeat from a launch block, such as a secret."""
    if isinstance(error, TemplateError | TypeError):
        return str(error)
    return f"cannot be used here ({type(error).__name__})"


# -- filters ----------------------------------------------------------------------------------------------------------


def _checked(value: Any) -> Any:
    if isinstance(value, QuotedText) or type(value) is int:
        return value
    if isinstance(value, StrictUndefined):
        return str(value)  # raises: the name is not defined
    names = ", ".join(name for name in FILTERS if name != "json")
    raise TemplateError(f"a value passes none of the filters that quote it ({names})")


def _plain(text: str) -> QuotedText:
    if not _PLAIN.fullmatch(text):
        raise TemplateError("the filter plain is for names and paths that need no quotes, and this value does")
    return QuotedText(text)


def _yaml(value: Any, indent: int = 0) -> QuotedText:
    """YAML with all texts in double quotes, so that no reader takes one for a number, a time or a truth value."""
    out = io.StringIO()
    yaml = YAML()
    yaml.width = 1_000_000  # never wrap inside a value
    yaml.indent(mapping=2, sequence=4 if isinstance(value, dict) else 2, offset=2 if isinstance(value, dict) else 0)
    yaml.dump(_double_quoted(value), out)
    return QuotedText("\n".join(" " * indent + line for line in out.getvalue().splitlines()))


def _double_quoted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _double_quoted(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_double_quoted(inner) for inner in value]
    return DoubleQuotedScalarString(value) if isinstance(value, str) else value


FILTERS: dict[str, Any] = {
    "word": lambda text: QuotedText(shell_word(text)),
    "quote": lambda text: QuotedText(shlex.quote(text)),
    "plain": _plain,
    "line": lambda text: QuotedText(" ".join(text.splitlines())),
    "comment": lambda text: QuotedText("\n".join(comment_lines(text))),
    "unit": lambda text: QuotedText(unit_text(text)),
    "yaml": _yaml,
    "json": lambda value: json.dumps(value, ensure_ascii=False),
    "join": lambda texts, separator="": QuotedText(separator.join(str(_checked(text)) for text in texts)),
}
