"""Pictures described for models that cannot see (`aliases.*.describe_images`), as an app of a gateway.

Each picture is described once, by another alias, in a request of its own on behalf of the same client; descriptions are
kept in memory by the picture's hash. A description is the client's alone, and one that was made of a request that may
not leave the LAN is used for such requests alone: it is kept under the client's name and that mark."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Raw

from gateway.config.snapshot import Alias
from gateway.domain.body import value_of
from gateway.domain.request import InferenceRequest, parse
from gateway.errors import GatewayError
from gateway.large_bodies import apart_if_large
from gateway.proxy.inner_exchange import InnerExchange, OnBehalf
from gateway.proxy.services import RunInner
from gateway.proxy.stages import ReceivedRequest, RequestContext
from gateway.runtime.apps import Extension
from gateway.runtime.gateway import Gateway

KEPT_MOST = 1_000  # descriptions; beyond it the oldest of the client with the most gives way
TEXT_MOST = 16_000  # characters of one
PICTURES_MOST = 64  # of one request
AT_A_TIME = 2  # pictures of one request that are described beside each other
TOKENS_MOST = 1_500  # of one description
ASK = (
    "Describe this picture for somebody who cannot see it and has to work with it: every text in it word for word, then"
    " what it shows, how it is laid out, and what stands out. Write the description alone."
)

_encode = msgspec.json.Encoder().encode
_Key = tuple[bool, str, bytes]  # whether it stays in the LAN, the describing alias, the picture's hash
_Kept = OrderedDict[_Key, str]


def app(gateway: Gateway) -> Extension:
    gateway.services.describer = PictureDescriber()
    return Extension()


class PictureDescriber:
    """One per gateway: puts descriptions in the place of a chat's pictures."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}  # by client

    async def described(self, context: RequestContext, received: ReceivedRequest, run: RunInner) -> InferenceRequest:
        """The request with descriptions in the place of its pictures, as far as they could be described; the request
        itself, where a backend of the alias' first step sees. `run` handles a request on an inner exchange."""
        request, alias = received.request, received.alias
        target = context.snapshot.aliases.get(alias.describe_images or "")
        if target is None or not request.media.images or _sees(context, alias):
            return request
        sender, size = request.sender, request.prompt_bytes
        messages = await apart_if_large(sender, size, partial(value_of, request.fields["messages"]))
        parts = list(_pictures(messages))
        if len(parts) > PICTURES_MOST:
            message = f"The request has more than {PICTURES_MOST} pictures to describe."
            raise GatewayError("input_unsupported", message, param="messages")
        hashes = await apart_if_large(sender, size, lambda: list(map(_hash, parts)))
        hashed = {hash_: part["image_url"] for hash_, part in zip(hashes, parts, strict=True)}
        client, local = received.client.name, context.record.privacy.local_only
        keys: dict[bytes, _Key] = {hash_: (local, target.name, hash_) for hash_ in hashed}
        kept: Mapping[_Key, str] = self._kept.get(client, {})
        new = [hash_ for hash_, key in keys.items() if key not in kept]
        texts = dict(zip(new, await self._ask(context, received, target, [hashed[h] for h in new], run), strict=True))
        for hash_, key in keys.items():
            text = texts.get(hash_) or kept.get(key, "")
            if text:
                self._keep(client, key, text)
            texts[hash_] = text
        count = 0
        for hash_, part in zip(hashes, parts, strict=True):
            if text := texts[hash_]:
                del part["image_url"]
                part |= {"type": "text", "text": f"[Picture, described by {target.name}: {text}]"}
                count += 1
        if not count:
            return request
        context.record.described = count
        encoded = Raw(await apart_if_large(sender, size, partial(_encode, messages)))
        made = parse(context.record.endpoint, {**request.fields, "messages": encoded})
        made.sender = sender
        return made

    async def _ask(
        self, context: RequestContext, received: ReceivedRequest, target: Alias, images: list[Any], run: RunInner
    ) -> list[str]:
        """A description for each picture, in their order; "" = it could not be described."""
        turn = asyncio.Semaphore(AT_A_TIME)
        kept = context.exchange.share.sibling()  # what the answers take
        behalf = OnBehalf(received.client, target)
        exchanges: list[InnerExchange] = []  # those that have begun
        left = False

        async def ask(number: int, image: Any) -> str:
            async with turn:
                if left:
                    return ""
                exchange = _exchange(context, target, number, image, kept)
                exchanges.append(exchange)
                await run(exchange, behalf)
                return _text_of(exchange)

        tasks = [asyncio.create_task(ask(*one), name="describe a picture") for one in enumerate(images)]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            left = True
            for exchange in exchanges:
                exchange.leave()
            await asyncio.gather(*tasks, return_exceptions=True)
            kept.close()

    def _keep(self, client: str, key: _Key, text: str) -> None:
        own = self._kept.setdefault(client, _Kept())
        own[key] = text
        own.move_to_end(key)
        if sum(map(len, self._kept.values())) > KEPT_MOST:
            most = max(self._kept, key=lambda name: len(self._kept[name]))
            self._kept[most].popitem(last=False)
            if not self._kept[most]:
                del self._kept[most]


def _sees(context: RequestContext, alias: Alias) -> bool:
    """Has the alias' first step a backend of which it is known that it takes images?"""
    states = context.services.fleet.states
    first = alias.steps[0] if alias.steps else ()
    return any(name in states and states[name].backend.vision for name in first)


def _exchange(context: RequestContext, target: Alias, number: int, image: Any, kept: Any) -> InnerExchange:
    outer = context.exchange
    content = [{"type": "text", "text": ASK}, {"type": "image_url", "image_url": image}]
    body = {"model": target.name, "max_tokens": TOKENS_MOST, "messages": [{"role": "user", "content": content}]}
    headers = {name: value for name, value in outer.headers.items() if name in (b"authorization", b"x-api-key")}
    headers[b"x-request-id"] = f"{context.record.id[:120]}-picture-{number}".encode()
    return InnerExchange(headers, outer.peer, _encode(body), outer.share.sibling(), kept, context.record.privacy)


def _pictures(messages: Any) -> Iterator[dict[str, Any]]:
    """The parts of the messages that are pictures."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") == "image_url" and part.get("image_url"):
                yield part


def _hash(part: dict[str, Any]) -> bytes:
    image = part["image_url"]
    url = image.get("url") if isinstance(image, dict) else image
    return blake2b(_encode(url), digest_size=16).digest()


def _text_of(exchange: InnerExchange) -> str:
    """The text of a whole answer; "" where it is an error or has none."""
    if exchange.status != 200:
        return ""
    try:
        text = msgspec.json.decode(bytes(exchange.body))["choices"][0]["message"]["content"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, IndexError, TypeError):
        return ""
    return text.strip()[:TEXT_MOST] if isinstance(text, str) else ""
