"""Fetches the pictures that a chat names by their addresses, as far as `images.fetch` of the backend allows it.

An address is public or it is not asked: its host is resolved once, every address of it has to be a public one, and the
connection goes to the address that was looked at. Redirects are not followed."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import msgspec
from msgspec import Raw

from gateway.domain.body import value_of
from gateway.engines.base import EngineRequest, UnmetDemand
from gateway.large_bodies import apart_if_large
from gateway.transport.bounded import async_client, fetch

PICTURES_MOST = 16  # of one request
BYTES_MOST = 20 * 1024 * 1024  # of one picture
ALL_BYTES_MOST = 48 * 1024 * 1024  # of those of one request: in base64 as much as a body may have
SECONDS = 15.0  # for all pictures of one request
LOOKUPS_MOST, LOOKUPS_EACH = 32, 4  # host names that are looked up at a time, and those of one client
# The IPv6 addresses that are given out, and networks of them that lead to addresses which may not be public.
_GIVEN_OUT = ipaddress.ip_network("2000::/3")
_TRANSLATED = tuple(ipaddress.ip_network(text) for text in ("2002::/16", "2001::/32"))

_encode = msgspec.json.Encoder().encode


class HostLookups:
    """The host names of clients that are looked up. One that is never answered takes a thread for half a minute, also
    when its client has left: so they are bounded, for all and for each client."""

    def __init__(self) -> None:
        self._under_way: dict[str, int] = {}  # client -> how many

    async def address(self, host: str, port: int, sender: str) -> str:
        """An address of the host. Raises OSError where it has none, or one that is not public."""
        under_way = self._under_way
        if under_way.get(sender, 0) >= LOOKUPS_EACH or sum(under_way.values()) >= LOOKUPS_MOST:
            raise OSError("too many host names are being looked up")
        loop = asyncio.get_running_loop()
        lookup = loop.create_task(loop.getaddrinfo(host, port, type=socket.SOCK_STREAM), name="look up a host")
        under_way[sender] = under_way.get(sender, 0) + 1
        lookup.add_done_callback(lambda _: self._ended(sender))
        addresses = [str(entry[4][0]) for entry in await asyncio.shield(lookup)]
        if not all(map(is_public, addresses)):
            raise OSError("its address is not a public one")
        return addresses[0]

    def _ended(self, sender: str) -> None:
        self._under_way[sender] -= 1
        if not self._under_way[sender]:
            del self._under_way[sender]


async def fetch_pictures(allowed: tuple[str, ...], call: EngineRequest, lookups: HostLookups) -> None:
    """Put the pictures themselves in the place of the addresses that may be asked. Raises UnmetDemand for one that
    cannot be had; other addresses are left to whoever reads the messages."""
    messages = call.fields.get("messages")
    if messages is None or b"image_url" not in bytes(messages):
        return
    size = len(memoryview(messages))
    value = await apart_if_large(call.sender, size, partial(value_of, messages))
    images = [image for image in _images(value) if is_allowed(image["url"], allowed)]
    if not images:
        return
    if call.local_only:
        raise UnmetDemand(
            "Nothing of this request may leave the LAN: send the picture itself, not its address.", "messages"
        )
    if len({image["url"] for image in images}) > PICTURES_MOST:
        raise UnmetDemand(f"The gateway fetches at most {PICTURES_MOST} pictures of one request.", "messages")
    found: dict[str, str] = {}
    left = ALL_BYTES_MOST
    try:
        async with asyncio.timeout(SECONDS), async_client(SECONDS) as client:
            for url in dict.fromkeys(image["url"] for image in images):
                kind, picture = await _picture(client, url, call, lookups, min(left, BYTES_MOST))
                left, size = left - len(picture), size + len(picture)
                found[url] = f"data:{kind};base64,{b64encode(picture).decode()}"
    except TimeoutError:
        raise UnmetDemand(f"The pictures did not arrive within {SECONDS:g} s.", "messages") from None
    for image in images:
        image["url"] = found[image["url"]]
    encoded = await apart_if_large(call.sender, size, partial(_encode, value))
    call.fields = {**call.fields, "messages": Raw(encoded)}


def _images(messages: Any) -> Iterator[dict[str, Any]]:
    """The `image_url` objects of the messages that have an address; an address alone is made an object."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") == "image_url":
                if isinstance(part.get("image_url"), str):
                    part["image_url"] = {"url": part["image_url"]}
                image = part.get("image_url")
                if isinstance(image, dict) and isinstance(image.get("url"), str):
                    yield image


def is_allowed(url: str, allowed: tuple[str, ...]) -> bool:
    """Does the address lie below one of these beginnings? Pure."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.username is not None or not parts.hostname:
            return False
    except ValueError:
        return False
    return any(_lies_below(parts.scheme, parts.netloc.lower(), parts.path or "/", rule) for rule in allowed)


def _lies_below(scheme: str, host: str, path: str, rule: str) -> bool:
    begin = urlsplit(rule)
    if begin.scheme != scheme or begin.netloc not in ("", host):
        return False
    below = begin.path.rstrip("/")
    return ".." not in unquote(path).replace("\\", "/").split("/") and (path == below or path.startswith(below + "/"))


def is_public(address: str) -> bool:
    """Is this IP address one of the public internet? Pure."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.version == 6 and (ip not in _GIVEN_OUT or any(ip in network for network in _TRANSLATED)):
        return False
    return ip.is_global and not ip.is_multicast


async def _picture(
    client: httpx.AsyncClient, url: str, call: EngineRequest, lookups: HostLookups, most: int
) -> tuple[str, bytes]:
    """(its media type, the picture)"""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        address = await lookups.address(host, port, call.sender)
        shown = f"[{address}]" if ":" in address else address
        target = parts._replace(netloc=shown if parts.port is None else f"{shown}:{parts.port}").geturl()
        answer = await fetch(
            client, "GET", target, most=most, seconds=SECONDS,
            headers={"host": parts.netloc, "accept": "image/*"}, extensions={"sni_hostname": host},
        )  # fmt: skip
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise UnmetDemand(
            f"The picture at {host} could not be fetched: {error or type(error).__name__}.", "messages"
        ) from None
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if answer.status_code != 200 or not kind.startswith("image/"):
        what = f"{answer.status_code} {kind}".strip()
        raise UnmetDemand(f"The picture at {host} could not be fetched: it answered {what}.", "messages")
    if call.memory is not None:
        call.memory.add(len(answer.content) * 2)
    return kind, answer.content
