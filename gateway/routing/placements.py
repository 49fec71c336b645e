"""Where the prefixes of conversations are cached, as far as this gateway knows: which backend has computed a prompt
that begins so.

A prompt is known by its key (conversation_key.py) and by marks: hashes of its text up to bounds that are the same for
all prompts, each hash going on from the one before. So the longest common beginning of two prompts is found by looking
a few marks up, also for a conversation without an id, a branch of one, and a sub-agent. Marks hold in this process
only. Each client has its own; when there are too many, those of the client with the most are forgotten, the oldest
first."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from operator import xor

from gateway.domain.request import InferenceRequest

ENTRIES_MOST = 65_536
FORGOTTEN = 1_024  # entries at a time
CLIENTS_MOST = 1_024
NEWS_MOST = 1_024  # placements that are told to other gateways at a time
CLOSE = 4096  # bytes by which another backend may know more of a prompt, and its session's is still at home


def _bounds() -> tuple[int, ...]:
    found = [2048]
    while found[-1] < 4 * 1024 * 1024:
        found.append(found[-1] * 9 // 8)
    return tuple(found)


BOUNDS = _bounds()  # bytes of the text; longer ones are compared up to the last bound
_PIECES = tuple(slice(start, end) for start, end in zip((0, *BOUNDS), BOUNDS, strict=False))  # each of another length


News = dict[tuple[str, str], str]  # (client, digest of a conversation's key) -> its backend


@dataclass(slots=True)
class Session:
    """One request, as far as its place goes. `key`: of its conversation. `size`: bytes of its prompt. `cached`: backend
    -> bytes of it that are probably cached there. `home`: the backend of the conversation; None = it is new.
    `yields`: it is of a batch, and is sent where it throws the least of others out of a cache."""

    key: bytes
    size: int = 0
    cached: Mapping[str, int] = field(default_factory=dict)
    home: str | None = None
    marks: tuple[Hashable, ...] = ()
    client: str = ""
    yields: bool = False


def no_session() -> Session:
    """For a request of which nothing is known."""
    return Session(b"")


class Placements:
    """The table of one gateway: mark -> {backend: bytes of the latest prompt that began so}. `news`: the conversations
    whose place is new, for other gateways; None: there are none. Set before the first request."""

    def __init__(self) -> None:
        self.news: News | None = None
        self._tables: OrderedDict[str, OrderedDict[Hashable, dict[str, int]]] = OrderedDict()
        self._entries = 0

    def find(self, request: InferenceRequest, key: bytes, client: str) -> Session:
        """What is known of this request's prompt."""
        text, offered = _prompt(request)
        marks = _marks(text, offered)
        session = Session(key, len(text) + len(offered), marks=marks, client=client)
        if (table := self._tables.get(client)) is not None:
            session.cached = _cached(table, marks, len(text), len(offered))
            if (places := table.get(self._own(key))) is not None:
                session.home = _home(next(iter(places)), session.cached)
        return session

    def put(self, session: Session, backend: str) -> None:
        """This backend computes the session's prompt."""
        table = self._table(session.client)
        before = len(table)
        for mark in session.marks:
            if (places := table.get(mark)) is None:
                table[mark] = {backend: session.size}
            else:
                places[backend] = session.size
                table.move_to_end(mark)
        table[own := self._own(session.key)] = {backend: session.size}
        table.move_to_end(own)
        if isinstance(own, str) and self.news is not None and session.home != backend and len(self.news) < NEWS_MOST:
            self.news[session.client, own] = backend
        if len(table) != before:
            self._count(len(table) - before)

    def learn(self, news: News) -> None:
        """Another gateway has placed these conversations."""
        for (client, own), backend in news.items():
            table = self._table(client)
            before = len(table)
            table[own] = {backend: 0}
            table.move_to_end(own)
            self._count(len(table) - before)

    def _own(self, key: bytes) -> Hashable:
        """What a conversation is known by: ids may be long, and are not kept. Gateways need the same."""
        return hash(key) if self.news is None else blake2b(key, digest_size=16).hexdigest()

    def _table(self, client: str) -> OrderedDict[Hashable, dict[str, int]]:
        table = self._tables.get(client)
        if table is None:
            table = self._tables[client] = OrderedDict()
            if len(self._tables) > CLIENTS_MOST:
                self._entries -= len(self._tables.popitem(last=False)[1])
        self._tables.move_to_end(client)
        return table

    def _count(self, more: int) -> None:
        self._entries += more
        if self._entries > ENTRIES_MOST:
            self._forget_some()

    def forget(self, backend: str) -> None:
        """The cache of this backend is empty now."""
        for table in self._tables.values():
            for mark in [
                mark for mark, places in table.items() if places.pop(backend, None) is not None and not places
            ]:
                del table[mark]
                self._entries -= 1

    def _forget_some(self) -> None:
        largest = max(self._tables.values(), key=len)
        for _ in range(min(FORGOTTEN, len(largest))):
            largest.popitem(last=False)
            self._entries -= 1

    def __len__(self) -> int:
        return self._entries


def _prompt(request: InferenceRequest) -> tuple[bytes, bytes]:
    """(the text that grows, what stands before it in the prompt)"""
    names, fields = request.endpoint.prompt, request.fields
    text = fields.get(names[0]) if names else None
    offered = fields.get(names[1]) if len(names) > 1 else None
    return b"" if text is None else bytes(text), b"" if offered is None else bytes(offered)


def _marks(text: bytes, offered: bytes) -> tuple[int, ...]:
    """The tools' mark, and one for each bound up to the end of the text; its last byte closes the list. No two pieces
    are of the same length, so a mark says where each of them stands."""
    pieces = _PIECES[: bisect_left(BOUNDS, len(text))]
    return tuple(accumulate(map(hash, map(text.__getitem__, pieces)), xor, initial=hash(offered)))


def _cached(
    table: Mapping[Hashable, dict[str, int]], marks: tuple[Hashable, ...], text: int, offered: int
) -> dict[str, int]:
    """Backend -> bytes of the prompt that it has computed. The latest prompt that began so may be longer than what both
    have in common: where the next mark differs, they part before it."""
    found: dict[str, int] = {}
    if (all_of_them := table.get(marks[0])) is None:
        return found  # whoever has a longer part of it has this mark too
    for count in range(len(marks) - 1, -1, -1):
        if (places := table.get(marks[count])) is None:
            continue
        known = offered + (BOUNDS[count - 1] if count else 0)
        parts_before = offered + BOUNDS[count] if count + 1 < len(marks) else None
        for backend, size in places.items():
            if backend not in found:
                parted = parts_before is not None and size > parts_before
                found[backend] = known if parted or not count else min(size, offered + text)
        if len(found) == len(all_of_them):
            break
    return found


def _home(latest: str, cached: Mapping[str, int]) -> str:
    """The backend of a conversation that was at `latest` last: another one where that has clearly more of the prompt,
    as for two agents that share an id."""
    best = max(cached, key=cached.__getitem__, default=latest)
    return best if cached.get(best, 0) > cached.get(latest, 0) + CLOSE else latest
