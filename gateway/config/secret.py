"""Values that must not be shown, and what a message may show of a value."""

from __future__ import annotations

import re
from typing import Any

_URLS = re.compile(r"//\S+")  # the rest of a word: one or more URLs


class Secret:
    """A value that never shows itself: `repr`, `str` and formatting print `***`; `reveal()` gives the value."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


class ExpandedText(str):
    """A value that came from outside the file. `source` is how it was written (`${KEY}`), which is safe to show.

    It is compared and looked up as its value; an f-string and `repr` show its source, so that a message can name it
    like any other value. Where the value itself has to go into a longer text, `str(value)` gives it. Copies and pickles
    are plain text: what leaves the loading of a file knows nothing of variables."""

    source: str

    def __new__(cls, value: str, source: str) -> ExpandedText:
        made = super().__new__(cls, value)
        made.source = source
        return made

    def __repr__(self) -> str:
        return repr(self.source)

    def __format__(self, spec: str) -> str:
        return format(self.source, spec)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    def strip(self, chars: str | None = None, /) -> ExpandedText:
        return ExpandedText(super().strip(chars), self.source)


def without_credentials(text: str) -> str:
    """`text` with `***` for the user and the password of each URL in it."""
    return _URLS.sub(lambda urls: "//".join(map(_without_user, urls[0].split("//"))), text) if "@" in text else text


def _without_user(rest: str) -> str:
    """What follows the `//` of a URL. A password may hold an @, and one that was not quoted for a URL a slash: then the
    part before the slash ends in no port."""
    authority, slash, _ = rest.partition("/")
    _, colon, port = authority.rpartition(":")
    slash_in_password = slash and colon and not port.isdigit() and not authority.startswith("[")
    _, at, host = (rest if slash_in_password else authority).rpartition("@")
    return f"***@{host}{'' if slash_in_password else rest[len(authority) :]}" if at else rest


def shown(value: Any) -> str:
    """`value` as an error message may show it: never what a variable held, never the credentials of a URL."""
    if isinstance(value, bool):
        return f"'{str(value).lower()}'"
    if isinstance(value, ExpandedText):
        return f"{value.source!r} (as expanded)"
    if isinstance(value, str):
        text = without_credentials(value)
        return repr(text if len(text) <= 60 else text[:57] + "...")
    if isinstance(value, int | float):
        return f"'{value}'" if abs(value) < 1e18 else "that number"
    return {list: "a list", dict: "a mapping", type(None): "nothing"}.get(type(value), "that")
