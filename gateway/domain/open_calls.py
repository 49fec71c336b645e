"""The calls of a turn that have no result yet: results may name their call, or its tool, or nothing. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable


class OpenCalls:
    """In the order of the calls. Taking one costs the same, however many there are."""

    def __init__(self) -> None:
        self.begin(())

    def begin(self, calls: Iterable[tuple[str, str]]) -> None:
        """A turn has these calls, (id, name of the tool); those before are forgotten."""
        self._open = OrderedDict(enumerate(calls))
        self._of_id: dict[str, deque[int]] = {}
        self._of_name: dict[str, deque[int]] = {}
        for place, (id_, name) in self._open.items():
            self._of_id.setdefault(id_, deque()).append(place)
            self._of_name.setdefault(name, deque()).append(place)

    def take(self, id_: str | None = None, name: str | None = None) -> str | None:
        """The id of the first open call with this id, else of this tool, else of any; None: there is none. It has its
        result now."""
        if id_ is None and name is None:
            place = next(iter(self._open), None)
        else:
            places = (self._of_id.get(id_) if id_ is not None else self._of_name.get(name or "")) or deque()
            while places and places[0] not in self._open:
                places.popleft()
            place = places[0] if places else None
        return None if place is None else self._open.pop(place)[0]
