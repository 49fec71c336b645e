"""Everything that is wrong inside one value, and not only what is met first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from gateway.config.problems import Path

Read = TypeVar("Read")


class Mistakes(ValueError):
    """What is wrong inside a value: the path below it, and the message as a kind of value words it."""

    def __init__(self, found: Sequence[tuple[Path, str]]) -> None:
        super().__init__(found[0][1])
        self.found = tuple(found)


def each(members: Iterable[tuple[str | int, Any]], read: Callable[[Any], Read]) -> list[Read]:
    """What `read` makes of each of the members, which are given with their index or key. Raises `Mistakes`."""
    made: list[Read] = []
    wrong: list[tuple[Path, str]] = []
    for place, value in members:
        try:
            made.append(read(value))
        except Mistakes as error:
            wrong += [((place, *path), message) for path, message in error.found]
        except ValueError as error:
            wrong.append(((place,), str(error)))
    if wrong:
        raise Mistakes(wrong)
    return made
