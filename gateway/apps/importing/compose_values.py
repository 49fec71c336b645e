"""Values of a compose file as compose reads them: variables of `.env`, defaults, files of variables."""

from __future__ import annotations

import re
from typing import Any

from gateway.apps.importing.launches import Launches
from gateway.apps.importing.shell import Word, without_unset
from gateway.apps.importing.source import text_of
from gateway.config.problems import Path
from gateway.launch.words import split

_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)|\$([A-Za-z_]\w*)", re.ASCII)
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][\w.]*)\s*=\s*(.*)", re.ASCII)
_REFERENCE = re.compile(r"\$\{\w+\}", re.ASCII)
_DEEPEST = 8  # defaults inside of defaults
_MOST = 2_000  # variables of one file


def read_variables(text: str) -> dict[str, str]:
    """The lines `NAME=value` of a `.env` or an `env_file`; quotes around a value are taken away."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None or len(found) >= _MOST:
            continue
        value = match[2].strip()
        quoted = re.match(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"", value)
        if quoted is None:
            found[match[1]] = re.sub(r"(^|\s+)#.*", "", value)
        else:
            found[match[1]] = quoted[1] if quoted[1] is not None else re.sub(r"\\(.)", r"\1", quoted[2])
    return found


class Values:
    """Texts with their variables put in. `variables`: those that the `.env` beside the file sets."""

    def __init__(self, launches: Launches, variables: dict[str, str]) -> None:
        self.launches = launches
        self.variables = {
            name: launches.secrets.value(name, value, (".env", name)) for name, value in variables.items()
        }

    def tree(self, value: Any, path: Path) -> Any:
        """A value with the variables put into every text in it."""
        if isinstance(value, dict):
            return {key: self.tree(inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.tree(inner, (*path, index)) for index, inner in enumerate(value)]
        return self.filled(value, path) if isinstance(value, str) and "$" in value else value

    def words(self, value: Any, path: Path) -> list[str]:
        """The words of a command: a list as it is, text as a shell splits it; of text, what is not set is no word."""
        if isinstance(value, list):
            return [str(one).lower() if isinstance(one, bool) else str(one) for one in value if one is not None]
        words = split(text_of(value) or "").words
        marked = [Word(word, unset=_REFERENCE.fullmatch(word) is not None) for word in words]
        return [word.text for word in without_unset(marked, lambda told: self._note(path, told))]

    def filled(self, text: str, path: Path, depth: int = 0) -> str:
        """`$X`, `${X}` and its forms; `$$` is a dollar sign for the container, `$${` in the launch block. A variable
        that has no value stays `${X}`."""
        made, at = [], 0
        while (match := _VARIABLE.search(text, at)) is not None:
            made.append(text[at : match.start()])
            at = match.end()
            if match[0] == "$$":
                made.append("$$" if text[at : at + 1] == "{" else "$")
            elif match[2] is not None:
                made.append(self.variables.get(match[2], f"${{{match[2]}}}"))
            else:
                end = _closing(text, at)
                made.append(self._braced(match[1], text[at:end], path, depth))
                at = end + 1
        self.launches.notes.spend(len(text))
        return "".join([*made, text[at:]])

    def _braced(self, name: str, rest: str, path: Path, depth: int) -> str:
        value = self.variables.get(name)
        operator = re.match(r":?[-?+]", rest)
        if operator is None or depth >= _DEEPEST:
            return f"${{{name}}}" if value is None else value
        operand = rest[operator.end() :]
        is_set = value is not None and (value != "" or operator[0][0] != ":")
        if operator[0][-1] == "+":
            if not is_set:
                self._note(path, f"what ${{{name}:+...}} puts in is left out: {name} is not set here")
            return self.filled(operand, path, depth + 1) if is_set else ""
        if is_set or operator[0][-1] == "?":
            return f"${{{name}}}" if value is None else value
        default = self.filled(operand, path, depth + 1)
        self._note(path, f"{name} is not set here: its default '{default}' is taken")
        return default

    def _note(self, path: Path, told: str) -> None:
        self.launches.notes.changed(path, self.launches.secrets.mask(told))


def _closing(text: str, at: int) -> int:
    """The place of the brace that ends an expansion; the end of the text without one."""
    depth = 1
    while at < len(text):
        depth += text.startswith("${", at)
        depth -= text[at] == "}"
        if not depth:
            return at
        at += 1
    return len(text)
