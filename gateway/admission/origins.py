"""Detects requests that a web page of another site made a browser send.

A page can make its visitor's browser POST to any address. Then `Origin` names the page and, unless the server allows
more (CORS), the content-type is not JSON. A page can also make its own name resolve to our address ("DNS
rebinding"): then `Origin` equals `Host`, and both are a name that this gateway does not have. Pure; a few dictionary
look-ups per request.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from gateway.config.snapshot import Snapshot
from gateway.config.urls import is_address
from gateway.errors import GatewayError

FOREIGN = (
    "Pages of other sites may not use this gateway: the `Origin` is not the `Host` that was asked. Use the gateway's "
    "own page; a proxy in front of it must pass on `Host` as it came, and a script sends no `Origin`."
)
NOT_OURS = (
    "This gateway is not known by the name '{host}'. Ask it by its address, as localhost or by a name of the local "
    "network, or name it under `server.hosts` in routes.yaml."
)
NOT_JSON = "Send the request body as JSON, with `content-type: application/json`; this one says '{kind}'."
LAN_NAMES = (".localhost", ".local", ".lan", ".home.arpa", ".internal")
SHOWN_MOST = 80  # characters of a header in an error

_HOST = re.compile(r"(?:\[([0-9a-f:.]+(?:%[\w.-]+)?)\]|([a-z0-9_][a-z0-9_.-]*))(?::\d{0,5})?", re.ASCII | re.IGNORECASE)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}  # browsers omit them in both headers, proxies in neither
# Headers that proxies add. A request with one of these may come from any machine, not only from the proxy's.
_FORWARDED = frozenset(
    b"forwarded via x-real-ip x-client-ip x-cluster-client-ip x-original-forwarded-for x-original-host "
    b"x-original-uri x-original-url true-client-ip cf-connecting-ip fastly-client-ip fly-client-ip client-ip "
    b"x-proxyuser-ip x-envoy-external-address tailscale-user-login".split()
)


# -- where a request comes from ---------------------------------------------------------------------------------------


def check_source(snapshot: Snapshot, headers: Mapping[bytes, bytes]) -> None:
    """Raises `foreign_origin` for a page of another site, and `foreign_host` for a `Host` that is not a name of this
    gateway. Checked without `clients`, and whenever `server.hosts` is set."""
    check_origin(headers)
    hosts = snapshot.server.hosts
    if hosts is None and snapshot.clients:
        return  # the caller needs a key, which no page of another site knows
    host = headers.get(b"host")
    if host and not is_own_host(host, hosts or ()):
        raise GatewayError("foreign_host", NOT_OURS.format(host=shown(host)))


def check_origin(headers: Mapping[bytes, bytes]) -> None:
    """Raises `foreign_origin`."""
    origin = headers.get(b"origin")
    if origin is not None and is_foreign(origin.decode("latin-1"), headers.get(b"host", b"").decode("latin-1")):
        raise GatewayError("foreign_origin", FOREIGN)


def is_foreign(origin: str | None, host: str) -> bool:
    """Was this sent by a page that is not the gateway's own? (A request without Origin was not sent by a page.)"""
    if origin is None:
        return False
    scheme, _, name = origin.lower().partition("://")
    port = _DEFAULT_PORTS.get(scheme, "")
    return not name or name.removesuffix(port) != host.lower().removesuffix(port)


@lru_cache(maxsize=256)
def is_own_host(host: bytes, hosts: tuple[str, ...] = ()) -> bool:
    """Is this `Host` a name of the gateway? True for addresses, for names that only a local network has, and for
    `hosts` (lower case)."""
    text = host.decode("latin-1")
    if is_address(text):
        return True  # an IPv6 address without brackets
    match = _HOST.fullmatch(text)
    if match is None:
        return False
    if match[1] is not None:
        return is_address(match[1])
    name = match[2].lower().removesuffix(".")
    return "." not in name or name.endswith(LAN_NAMES) or name in hosts or is_address(name)


def shown(value: bytes) -> str:
    """A header's value for the error message to its client."""
    return value[:SHOWN_MOST].decode("latin-1")


# -- this machine -----------------------------------------------------------------------------------------------------


def is_from_here(headers: Mapping[bytes, bytes], peer: str, http_version: str = "1.1") -> bool:
    """Was the request sent by a program on this machine, to a name that can only mean this machine, and not by a proxy?

    HTTP/1.0 counts as a proxy: by default nginx uses it for its upstreams, and adds none of the headers.
    """
    if http_version == "1.0" or is_forwarded(headers):
        return False
    return is_loopback(peer) and is_loopback(hostname(headers.get(b"host", b"").decode("latin-1")))


def is_forwarded(headers: Mapping[bytes, bytes]) -> bool:
    """Has a proxy passed the request on, as far as its headers say?"""
    return any(name in _FORWARDED or name.startswith(b"x-forwarded") for name in headers)


def hostname(host: str) -> str:
    """The host name in a Host header, without the port."""
    try:
        return urlsplit("//" + host).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Is it an address or name that can only mean this machine? (A page can make any other name resolve to
    127.0.0.1.)"""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


# -- content type -----------------------------------------------------------------------------------------------------


def check_json(headers: Mapping[bytes, bytes]) -> None:
    """Raises `unsupported_media_type` for a content-type other than JSON: a page of another site can send
    `text/plain` and forms without asking the server first. A missing content-type counts as JSON; a page cannot
    avoid `Origin`."""
    kind = headers.get(b"content-type")
    if kind and kind != b"application/json" and not is_json(kind):
        raise GatewayError("unsupported_media_type", NOT_JSON.format(kind=shown(kind)))


@lru_cache(maxsize=64)
def is_json(kind: bytes) -> bool:
    """True for `application/json`, `text/json` and `application/*+json`, with any parameters."""
    media = kind.partition(b";")[0].strip().lower()
    return media in (b"application/json", b"text/json") or (
        media.startswith(b"application/") and media.endswith(b"+json") and b"," not in media
    )


def has_body(headers: Mapping[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or bool(headers.get(b"content-length", b"").strip(b"0 "))
