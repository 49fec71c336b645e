"""The items of the latest answers, in memory, for clients that refer to them instead of sending them again: the AI SDK
does so by default, and counts on a server that keeps its responses. With `server.keep_responses` they are kept on disk
(kept.py)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

import msgspec
from msgspec import Raw

from gateway.apps.dialects.fields import value_in
from gateway.apps.dialects.responses.relayed import ResponseTranslation
from gateway.apps.dialects.translated import TranslatedExchange
from gateway.config.snapshot import Snapshot
from gateway.domain.body import read_fields
from gateway.domain.privacy import Privacy
from gateway.proxy.exchange import Exchange, Headers, nothing

HELD = 900.0  # seconds
SIZE_MOST = 32 * 1024 * 1024  # bytes of all items; of one client a quarter
ITEMS_MOST = 50_000
_REFERENCE = b'"item_reference"'

_encode = msgspec.json.Encoder().encode


class _SentItems(msgspec.Struct):
    output: list[dict[str, Raw]] = []


_decode = msgspec.json.Decoder(_SentItems).decode


class RecentItem(NamedTuple):
    """`local`: it may not leave the LAN. `until`: monotonic seconds."""

    item: bytes
    local: bool
    until: float


class RecentItems:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._items: OrderedDict[tuple[str, str], RecentItem] = OrderedDict()  # by owner and id, the oldest first
        self._sizes: dict[str, int] = {}  # bytes, by owner

    def add(self, owner: str, response: bytes, *, local: bool) -> None:
        """Keep the items of a response as it was sent."""
        until = self._clock() + HELD
        for fields in _decode(response).output:
            id_, item = value_in(fields.get("id"), "id"), _encode(fields)
            if isinstance(id_, str) and len(item) <= SIZE_MOST // 4:
                self._drop((owner, id_))
                self._items[owner, id_] = RecentItem(item, local, until)
                self._sizes[owner] = self._sizes.get(owner, 0) + len(item)
        self._bound(owner)

    def find(self, owner: str, id_: str) -> RecentItem | None:
        found = self._items.get((owner, id_))
        return found if found is not None and found.until > self._clock() else None

    def _drop(self, key: tuple[str, str]) -> None:
        if (dropped := self._items.pop(key, None)) is not None:
            left = self._sizes[key[0]] - len(dropped.item)
            if left:
                self._sizes[key[0]] = left
            else:
                del self._sizes[key[0]]

    def _bound(self, owner: str) -> None:
        now = self._clock()
        while self._items:
            oldest = next(iter(self._items))
            full = len(self._items) > ITEMS_MOST or sum(self._sizes.values()) > SIZE_MOST
            if not full and self._items[oldest].until > now:
                break
            self._drop(oldest)
        own = [key for key in self._items if key[0] == owner] if self._sizes.get(owner, 0) > SIZE_MOST // 4 else []
        for key in own:
            if self._sizes.get(owner, 0) <= SIZE_MOST // 4:
                break
            self._drop(key)


class RecentExchange(TranslatedExchange):
    """`store: false` keeps nothing."""

    __slots__ = ("_items", "_keeps", "_local", "_owner", "_response", "_snapshot")

    def __init__(self, inner: Exchange, items: RecentItems, snapshot: Snapshot) -> None:
        self._response = ResponseTranslation()
        super().__init__(inner, self._response)
        self._items, self._snapshot = items, snapshot
        self._keeps = self._local = False
        self._owner = ""

    async def read_body(self, limit: int) -> bytes:
        body = await self._inner.read_body(limit)
        fields = read_fields(body)
        self._keeps = value_in(fields.get("store"), "store") is not False
        if self._keeps:
            identity = self.caller.identify(self._snapshot)
            self._owner, self._local = identity.label, self.caller.privacy(identity).local_only
            if _REFERENCE in body:
                fields["input"] = self._resolved(fields.get("input", Raw(b"null")), limit)
                before, body = len(body), _encode(fields)
                self.share.add(max(0, len(body) - before))
        return await self.translate(body)

    def _resolved(self, given: Raw, limit: int) -> Raw:
        """The input with the items that it refers to. Thoughts that are not held any more are left out; any other
        reference stays, and is refused."""
        items = value_in(given, "input")
        if not isinstance(items, list):
            return given
        made: list[object] = []
        size = 0
        for item in items:
            id_ = item.get("id") if isinstance(item, dict) and item.get("type") == "item_reference" else None
            found = self._items.find(self._owner, id_) if isinstance(id_, str) else None
            if found is not None and size + len(found.item) <= limit:
                size += len(found.item)
                made.append(Raw(found.item))
                if found.local and not self._local:
                    self._local = True
                    self.caller = self.caller.with_privacy(Privacy(local_only=True))
            elif not (isinstance(id_, str) and id_.startswith("rs_")):
                made.append(item)
        return Raw(_encode(made))

    def _keep(self) -> None:
        ended = self._response.ended
        if ended is not None and self._keeps:
            self._keeps = False
            self._items.add(self._owner, ended, local=self._local)

    async def write(self, data: bytes) -> None:
        await super().write(data)
        self._keep()

    def put(self, data: bytes) -> None:
        super().put(data)
        self._keep()

    async def finish(self, data: bytes = b"", progress: Callable[[], object] = nothing) -> None:
        if self._head is None:
            translated = self._translated(data)
            self._keep()  # before its end is sent: the client may refer to it at once
            await self._inner.finish(translated, progress)
        else:
            await super().finish(data, progress)

    async def _send_whole(self, status: int, fields: Headers, body: bytes, progress: Callable[[], object]) -> None:
        self._keep()
        await super()._send_whole(status, fields, body, progress)
