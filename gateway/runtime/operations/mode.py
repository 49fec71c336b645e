"""The mode in force, remembered by this process alone."""

from __future__ import annotations

from collections.abc import Callable

from gateway.config.snapshot import Snapshot


class RememberedMode:
    """The first mode of the file until another one is put in force."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self._name: str | None = None

    def current_mode(self) -> str | None:
        """The mode in force; None = the file has no modes."""
        modes = self._snapshot().modes
        return self._name if self._name in modes else next(iter(modes), None)

    async def put_mode_in_force(self, name: str) -> None:
        """`name` is a mode of the snapshot in force."""
        self._name = name
