"""Makes foreign text (of backends, clients, files) safe for a terminal or a log: characters that would control a
terminal, forge a line or reverse the text are shown as escapes."""

from __future__ import annotations

import re
from typing import Any
from unicodedata import category

# `str.isprintable` refuses them, but they are plain text: they join emoji and letters.
_KEPT = frozenset("\u200c\u200d")
_DELETE = 0x7F
_UNSAFE_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def visible(text: str) -> str:
    """`text` on one line, with `\\x1b`, `\\n`, `\\u202e` and the like in the place of control characters, line ends,
    direction marks, lone surrogates and other characters that are not printable."""
    return text if text.isprintable() else "".join([_shown(char) for char in text])


def visible_lines(text: str) -> str:
    """The same for text of several lines, which keeps its line ends and tabs. Every line but the first is indented,
    so that it cannot be mistaken for a separate log line."""
    if text.isprintable():
        return text
    lines = text.rstrip("\r\n").replace("\r\n", "\n").split("\n")
    return "\n    ".join([visible(line.expandtabs(4)) for line in lines])


def visible_all(value: Any) -> Any:
    """Decoded JSON with every text in it as `visible` shows it, names of keys included."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible_all(name): visible_all(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [visible_all(inner) for inner in value]
    return value


def visible_json(encoded: bytes) -> bytes:
    """The same JSON value, encoded so that its strings contain no control character (JSON itself escapes only those
    below space) and no direction mark."""
    if encoded.isascii() and _DELETE not in encoded:
        return encoded
    return _UNSAFE_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded.decode()).encode()


def _shown(char: str) -> str:
    if char.isprintable() or char in _KEPT or category(char) == "Zs":
        return char
    return char.encode("unicode_escape").decode("ascii")
