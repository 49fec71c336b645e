"""An error that an object keeps, to be raised later or more than once."""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def fresh(kept: E) -> E:
    """A copy of `kept` to raise. An error that is raised leads, by its traceback, to the frames that it passes and to
    what they hold: bodies too. If one of these keeps the error, only a garbage collection would free them all."""
    copy = type(kept).__new__(type(kept), *kept.args)
    copy.__dict__.update(kept.__dict__)
    copy.__cause__ = kept.__cause__
    return copy
