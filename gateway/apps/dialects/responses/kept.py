"""The exchange with a client whose responses are kept: earlier turns go into the request, and the response into the
store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
from msgspec import Raw

from gateway.apps.conversations.conversations import Conversations
from gateway.apps.conversations.store import Conversation, Turn
from gateway.apps.dialects.fields import brief, expected, value_in
from gateway.apps.dialects.responses.relayed import ResponseTranslation
from gateway.apps.dialects.translated import TranslatedExchange
from gateway.config.snapshot import Snapshot
from gateway.domain.body import read_fields
from gateway.domain.privacy import NO_MARKS, Privacy
from gateway.errors import GatewayError
from gateway.large_bodies import LARGE, apart_if_large
from gateway.proxy.exchange import Exchange, Headers, nothing
from gateway.proxy.reply import request_id

REFERRED_MOST = 100  # responses that one input may refer to

_encode = msgspec.json.Encoder().encode


_decode_items = msgspec.json.Decoder(list[dict[str, Raw]]).decode


class KeptExchange(TranslatedExchange):
    """`store: false` keeps nothing."""

    __slots__ = (
        *("_before", "_conversations", "_input", "_owner", "_previous", "_privacy", "_response", "_snapshot"),
        "__weakref__",
    )

    def __init__(self, inner: Exchange, conversations: Conversations, snapshot: Snapshot) -> None:
        self._response = ResponseTranslation()
        super().__init__(inner, self._response)
        self._conversations = conversations
        self._snapshot = snapshot
        self._owner = ""
        self._previous: str | None = None
        self._input = b""  # what is to be kept of the request; empty = nothing
        self._privacy = NO_MARKS

    async def read_body(self, limit: int) -> bytes:
        body = await self._inner.read_body(limit)
        fields = await apart_if_large(self.caller.sender, len(body), partial(read_fields, body))
        self._owner, privacy = self._who()
        named = fields.pop("previous_response_id", None)
        previous = value_in(named, "previous_response_id")
        if previous is not None and not isinstance(previous, str):
            raise expected("previous_response_id", "the id of a response", previous)
        own = fields.get("input", Raw(b"null"))
        refers = b'"item_reference"' in bytes(own)
        if refers:
            own, before = await self._with_items(own, limit)
            fields["input"] = own
            self.share.add(len(memoryview(own)))
            self.caller, privacy = self.caller.with_privacy(before), privacy | before
        if previous:
            size = await self._conversations.size(self._owner, previous)
            async with self._conversations.paced.turn(size):
                body, before = await self._with_kept(fields, previous, own, limit)
            self.caller, privacy = self.caller.with_privacy(before), privacy | before
        elif named is not None or refers:
            body = _encode(fields)
        self._previous, self._privacy = previous or None, privacy
        stores = value_in(fields.get("store"), "store") is not False
        if stores:
            self._input = _items(own)
            self.share.add(len(self._input))
            await self._choose_name()
        self._response.previous, self._response.stored = self._previous, stores
        return await self.translate(body)

    async def _with_kept(self, fields: dict[str, Raw], previous: str, own: Raw, limit: int) -> tuple[bytes, Privacy]:
        """The request with what is kept before it, and what that says about privacy."""
        kept = await self._conversations.conversation(self._owner, previous, limit, self.share.add)
        size = kept.size + len(memoryview(own))
        self.share.add(size)  # joined, it is there once more
        joining = partial(_joined, fields, kept, own, limit)
        body = joining() if size <= LARGE else await self._apart(joining)
        self.share.release(kept.size)
        return body, Privacy(local_only=kept.local)

    async def _with_items(self, own: Raw, limit: int) -> tuple[Raw, Privacy]:
        """(the input with the items of the client's own kept responses that it refers to, what was said of these).
        Raises GatewayError for one that is not kept."""
        items = value_in(own, "input")
        if not isinstance(items, list):
            return own, NO_MARKS
        outputs: dict[str, dict[str, Raw]] = {}
        made: list[object] = []
        local, size = False, len(memoryview(own))
        for place, item in enumerate(items):
            id_ = item.get("id") if isinstance(item, dict) and item.get("type") == "item_reference" else None
            if not isinstance(id_, str):
                made.append(item)  # refused, where it is a reference
                continue
            name = await self._conversations.response_with(self._owner, id_)
            if name is None:
                raise GatewayError("not_found", f"No item {brief(id_)} is kept.", param=f"input[{place}]")
            if name not in outputs:
                if len(outputs) >= REFERRED_MOST:
                    raise GatewayError("request_too_large", f"The input refers to more than {REFERRED_MOST} responses.")
                kept = await self._conversations.conversation(self._owner, name, limit, self.share.add)
                said = _decode_items(_output_of(kept.turns[-1]))
                self.share.release(kept.size)
                outputs[name] = {str(value_in(one.get("id"), "id")): Raw(_encode(one)) for one in said}
                local = local or kept.local
            found = outputs[name].get(str(id_))
            if found is None:
                raise GatewayError("not_found", f"No item {brief(id_)} is kept.", param=f"input[{place}]")
            made.append(found)
            size += len(memoryview(found))
            if size > limit:  # many may refer to one item
                raise GatewayError("request_too_large", f"With what is kept the request is larger than {limit} bytes.")
        return Raw(_encode(made)), Privacy(local_only=local)

    def _who(self) -> tuple[str, Privacy]:
        """(whose responses these are, what the request says about privacy)"""
        identity = self.caller.identify(self._snapshot)
        return identity.label, self.caller.privacy(identity)

    async def _choose_name(self) -> None:
        """The response gets the id that the client chose for its request, where no other of its responses has it."""
        given = self.headers.get(b"x-request-id")
        if given is not None:
            wanted = "resp_" + request_id(given)
            name = await self._conversations.free_name(self._owner, wanted, self)
            self._response.suffix = name.removeprefix(wanted)

    async def write(self, data: bytes) -> None:
        translated = self._translated(data)
        await self._keep()
        if translated:
            await self._inner.write(translated)

    ready = False  # what is kept is written to a store first

    async def finish(self, data: bytes = b"", progress: Callable[[], object] = nothing) -> None:
        if self._head is None:
            translated = self._translated(data)
            await self._keep()
            await self._inner.finish(translated, progress)
        else:
            await super().finish(data, progress)

    async def _send_whole(self, status: int, fields: Headers, body: bytes, progress: Callable[[], object]) -> None:
        await self._keep()
        await super()._send_whole(status, fields, body, progress)

    async def _keep(self) -> None:
        """Keep the response before its end is sent: the client may go on from it at once."""
        ended = self._response.ended
        if ended is None or not self._input:
            return
        turn, self._input = Turn(self._input, ended), b""
        name, local = self._response.id, self._privacy.local_only
        await self._conversations.add(self._owner, name, self._previous, turn, local=local)


def _output_of(turn: Turn) -> bytes:
    """The items of its response, as JSON."""
    return bytes(read_fields(turn.response).get("output", b"[]"))


def _items(raw: Raw) -> bytes:
    """The `input` of a request as a list of items. A request with another one is refused."""
    text = bytes(raw).strip()
    if text[:1] == b'"':
        return b'[{"type":"message","role":"user","content":' + text + b"}]"
    return text if text[:1] == b"[" else b"[]"


def _joined(fields: dict[str, Raw], kept: Conversation, own: Raw, limit: int) -> bytes:
    """The request with the input of the whole conversation, as one list of items. Raises `request_too_large`."""
    lists: list[bytes] = []
    for turn in kept.turns:
        lists += turn.input, _output_of(turn)
    lists.append(_items(own))
    inner = [one.strip()[1:-1].strip() for one in lists]
    joined = b"[" + b",".join(one for one in inner if one) + b"]"
    if len(joined) > limit:
        raise GatewayError("request_too_large", f"With what is kept the request is larger than {limit} bytes.")
    return _encode({**fields, "input": Raw(joined)})
