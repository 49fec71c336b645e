"""Text of a launch block in the languages of the rendered files: a shell word, a value of a unit, a value of compose.

`${NAME}` and `${NAME:-default}` are references for the machine that starts the engine: the shell (or compose) replaces
them there. Everything else is literal, whatever a shell would make of it. `$${` is a literal `${`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gateway.launch.secrets import MASK, SECRET, SECRET_FLAGS

_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_]\w*)(:-[^{}]*)?\}|\$\{", re.ASCII)

_PLAIN = re.compile(r"[\w./:,@%+=-]*", re.ASCII)


class Piece(NamedTuple):
    """A part of a text: literal `text`, or a reference to the variable `name` with its `default` (None = it must be
    set and not empty)."""

    text: str
    name: str | None = None
    default: str | None = None


def pieces(text: str) -> Iterator[Piece]:
    """The parts of a text in order, no two literal ones side by side. Raises ValueError for a `${` that begins
    neither `${NAME}` nor `${NAME:-default}`."""
    literal = ""
    end = 0
    for match in _REFERENCE.finditer(text):
        literal += text[end : match.start()]
        end = match.end()
        if match[0] == "$${":
            literal += "${"
            continue
        if match[1] is None:
            shown = text[match.start() : match.start() + 20]
            raise ValueError(f"'{shown}' is no reference that a machine of the fleet can replace")
        if literal:
            yield Piece(literal)
            literal = ""
        yield Piece("", match[1], None if match[2] is None else match[2][2:])
    if literal + text[end:]:
        yield Piece(literal + text[end:])


def required(texts: Iterable[str]) -> tuple[str, ...]:
    """The variables without which these texts have no value, each once and in order."""
    found = (piece.name for text in texts for piece in pieces(text) if piece.default is None)
    return tuple(dict.fromkeys(name for name in found if name is not None))


def referenced(texts: Iterable[str]) -> tuple[str, ...]:
    """All variables that these texts refer to, each once and in order."""
    found = (piece.name for text in texts for piece in pieces(text))
    return tuple(dict.fromkeys(name for name in found if name is not None))


def literals(value: object) -> list[str]:
    """What a secret's value (a text, several of them, or None) says itself: a text without references, and of one with
    references their defaults. What is no reference at all is an error elsewhere, and says nothing."""
    if isinstance(value, list):
        return [text for one in value for text in literals(one)]
    try:
        parts = list(pieces("" if value is None else str(value)))
    except ValueError:
        return []
    if any(part.name is not None for part in parts):
        return [part.default for part in parts if part.default]
    return [part.text for part in parts]


def shell_word(text: str) -> str:
    """One word of a bash script that has the text as its value, references replaced when the script runs. The script
    has the function `otherwise`, for defaults that cannot stand inside ${NAME:-default}."""
    return "".join(map(_shell_piece, pieces(text))) or "''"


def _shell_piece(piece: Piece) -> str:
    if piece.name is None:
        return shlex.quote(piece.text)
    if piece.default is None:
        return f'"${{{piece.name}}}"'
    if _PLAIN.fullmatch(piece.default):
        return f'"${{{piece.name}:-{piece.default}}}"'
    return f'"$(otherwise {piece.name} {shlex.quote(piece.default)})"'


def shell_path(text: str, user: str | None) -> str:
    """As `shell_word`, for a path: a leading `~/` is the home of `user` (None = of root, who runs the script)."""
    if text == "~" or text.startswith("~/"):
        return f"~{user or 'root'}/" + (shell_word(text[2:]) if text[2:] else "")
    return shell_word(text)


def compose_text(text: str) -> str:
    """The text as a value of a compose file: references stay, every other dollar sign is doubled."""
    made = []
    for piece in pieces(text):
        default = "" if piece.default is None else f":-{piece.default.replace('$', '$$')}"
        must = "" if piece.default is not None else ":?"
        made.append(piece.text.replace("$", "$$") if piece.name is None else f"${{{piece.name}{default}{must}}}")
    return "".join(made)


def unit_text(text: str) -> str:
    """The text as one line of a systemd unit in which `%` begins a specifier, as in Description=."""
    return " ".join(text.split()).replace("%", "%%").rstrip("\\")


def comment_lines(text: str, width: int = 116) -> Iterator[str]:
    """The text as lines of a comment; nothing in it can end the comment."""
    line = "#"
    for word in text.split():
        if len(line) + 1 + len(word) > width and line != "#":
            yield line
            line = "#"
        line = f"{line} {word}"
    yield line


_FLAGS = "|".join(SECRET_FLAGS)
_NO_REFERENCE = r"(?!\"?\$\{\w+(?:\}|:\?))"  # `:?` = compose asks for it
_PLACES = (
    # NAME=value of the script and of units, NAME: "value" of compose; two words name no secret
    re.compile(
        rf"(?im)(?<![\w-])(?!NOPASSWD: |LoadCredential=)(\w*(?:{SECRET.pattern})\w*(?:=|: ))"
        rf"{_NO_REFERENCE}(\S.*?)( \\)?$"
    ),
    re.compile(rf"(?m)^(\s*--(?:{_FLAGS})[ =]){_NO_REFERENCE}(\S.*?)( \\)?$"),
    re.compile(rf"(?m)^(\s*- \"--(?:{_FLAGS})\"\n\s*- ){_NO_REFERENCE}(\S.*)()$"),
    re.compile(rf"(?m)^(\s*- \"--(?:{_FLAGS})=){_NO_REFERENCE}(.*)(\")$"),
    re.compile(rf"(?m)(Bearer %s\\n' ){_NO_REFERENCE}(\S.*?)( \|)$"),
)


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """The text with `********` in the place of every secret. `secrets`: values known to be in it; a short one may be
    anywhere by chance, and is found by its place alone."""
    for secret in sorted((one for one in secrets if len(one) >= 6), key=len, reverse=True):
        for written in (shlex.quote(secret), json.dumps(secret)[1:-1], secret.replace("$", "$$"), secret):
            text = text.replace(written, MASK)
    for place in _PLACES:
        text = place.sub(lambda match: f"{match[1]}{MASK}{match[3] or ''}", text)
    return text
