"""Where the other gateways have placed the conversations that may come here next. Only that is shared, not the marks of
prompts: a gateway that has not seen a conversation sends it where its cache is, and learns the rest by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.apps.cluster.redis_connection import Operation, key_of
from gateway.domain.backend import BackendState
from gateway.routing.placements import NEWS_MOST, News, Placements

NAMES_MOST = 512  # characters of a client's name and of a conversation's digest


class SharedPlacements:
    """Told with the batches that are sent anyway, every two seconds at the latest."""

    def __init__(self, placements: Placements, states: Callable[[], Mapping[str, BackendState]]) -> None:
        self._placements = placements
        self._states = states
        placements.news = {}

    def pending_operations(self) -> list[Operation]:
        """The operations to send now."""
        told, self._placements.news = self._placements.news, {}
        states = self._states()
        placed = [
            [client, key, key_of(states[backend].backend)]
            for (client, key), backend in (told or {}).items()
            if backend in states
        ]
        return [("placed", placed)] if placed else []

    def receive(self, placed: Any) -> None:
        """Another gateway has placed these conversations. What no gateway of this version writes is left out."""
        names = {key_of(state.backend): name for name, state in self._states().items()}
        news: News = {}
        for one in placed[:NEWS_MOST] if isinstance(placed, list) else ():
            match one:
                case [str(client), str(key), str(at)] if at in names and len(client) + len(key) <= NAMES_MOST:
                    news[client, key] = names[at]
        self._placements.learn(news)
