"""Cuts a text at its first stop string, for servers that do not do so themselves. Pure.

The result does not depend on how the text is divided into parts: the cut is at the stop string that is complete first,
as for an engine that checks after each character. Of several that end at the same character the longest counts.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopSearch:
    """Looks for stop strings in one text that arrives in parts. `stops`: none of them empty. `found`: the stop string
    at which the text was cut; None = the text goes on."""

    __slots__ = ("_held", "_stops", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""  # the end of the text so far, where it may be the beginning of a stop string
        self.found: str | None = None

    def feed(self, part: str) -> str:
        """The text that is certainly before a stop string, as far as it was not returned before. After a stop string
        was found there is none."""
        if self.found is not None:
            return ""
        text = self._held + part
        ends = [(at + len(stop), -len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            end, _, self.found = min(ends)
            self._held = ""
            return text[: end - len(self.found)]
        begins = min((self._begins(text, stop) for stop in self._stops), default=len(text))
        self._held = text[begins:]
        return text[:begins]

    def finish(self) -> str:
        """The text has ended: what was held belongs to it."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _begins(text: str, stop: str) -> int:
        """Where the longest beginning of `stop` starts that `text` ends with; the length of the text if there is
        none."""
        at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while at >= 0:
            if stop.startswith(text[at:]):
                return at
            at = text.find(stop[0], at + 1)
        return len(text)
