"""The flags of `docker run` that a launch block has in `docker`, one by one."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_LONG = {
    "a": "attach",
    "c": "cpu-shares",
    "d": "detach",
    "e": "env",
    "h": "hostname",
    "i": "interactive",
    "l": "label",
    "m": "memory",
    "p": "publish",
    "P": "publish-all",
    "q": "quiet",
    "t": "tty",
    "u": "user",
    "v": "volume",
    "w": "workdir",
}
_SWITCHES = frozenset(
    (
        "detach",
        "disable-content-trust",
        "init",
        "interactive",
        "no-healthcheck",
        "oom-kill-disable",
        "privileged",
        "publish-all",
        "quiet",
        "read-only",
        "rm",
        "sig-proxy",
        "tty",
        "use-api-socket",
    )
)
_SAME = {"net": "network", "net-alias": "network-alias", "dns-opt": "dns-option"}


class DockerFlag(NamedTuple):
    """`name`: the long name without dashes; `value`: None for a switch without a value."""

    name: str
    value: str | None = None

    def words(self) -> tuple[str, ...]:
        if self.value is None:
            return (f"--{self.name}",)
        return (f"--{self.name}={self.value}",) if self.name in _SWITCHES else (f"--{self.name}", self.value)


def read_flags(text: str) -> tuple[DockerFlag, ...]:
    """The flags of the text, in order. Raises ValueError with what is wrong."""
    try:
        words = iter(shlex.split(text))
    except ValueError:
        raise ValueError("a quote is never closed") from None
    return tuple(_flags(words))


def _flags(words: Iterator[str]) -> Iterator[DockerFlag]:
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = _SAME.get(name, name)
            if equals or name in _SWITCHES:
                yield DockerFlag(name, value if equals else None)
            else:
                yield DockerFlag(name, _value(words, word))
        elif word.startswith("-") and len(word) > 1:
            yield from _short(word, words)
        else:
            raise ValueError(f"'{word}' is no flag of `docker run`; the image and its command have keys of their own")


def _short(word: str, words: Iterator[str]) -> Iterator[DockerFlag]:
    """`-it`, `-p 8001:8000`, `-p8001:8000`, `-p=8001:8000`."""
    for index, letter in enumerate(word[1:], 1):
        name = _LONG.get(letter)
        if name is None:
            raise ValueError(f"'{word}' is no flag of `docker run`")
        if name in _SWITCHES:
            yield DockerFlag(name)
            continue
        yield DockerFlag(name, word[index + 1 :].removeprefix("=") or _value(words, word))
        return


def _value(words: Iterator[str], flag: str) -> str:
    value = next(words, None)
    if value is None:
        raise ValueError(f"'{flag}' has no value")
    return value


def values(flags: Iterable[DockerFlag], name: str) -> list[str]:
    return [flag.value for flag in flags if flag.name == name and flag.value is not None]
