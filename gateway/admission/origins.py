"""What a page of another site can make a browser send here, told from what programs send.

A page may have its visitor's browser POST to any address, with an `Origin` that names the page and, unless the server
agrees, a content-type that is no JSON. It may also have its own name resolve to our address ("DNS rebinding"): then
`Origin` is `Host`, and both are a name that nobody has given this gateway. Pure; a few dictionary look-ups a request.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from gateway.config.snapshot import Snapshot
from gateway.errors import GatewayError

FOREIGN = (
    "Pages of other sites may not use this gateway: the `Origin` is not the `Host` that was asked. Use the gateway's "
    "own page; a proxy in front of it must pass on `Host` as it came, and a script sends no `Origin`."
)
NOT_JSON = "Send the request body as JSON, with `content-type: application/json`; this one says '{kind}'."
LAN_NAMES = (".localhost", ".local", ".lan", ".home.arpa", ".internal")
SHOWN_MOST = 80  # characters of a header in an error

_HOST = re.compile(r"(?:\[([0-9a-f:.]+(?:%[\w.-]+)?)\]|([a-z0-9_][a-z0-9_.-]*))(?::\d{0,5})?", re.ASCII | re.IGNORECASE)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}  # browsers leave them out of both headers, proxies of neither
# What proxies add. A request that carries one of these came from wherever the proxy was asked from.
_FORWARDED = frozenset(
    b"forwarded via x-real-ip x-client-ip x-cluster-client-ip x-original-forwarded-for x-original-host "
    b"x-original-uri x-original-url true-client-ip cf-connecting-ip fastly-client-ip fly-client-ip client-ip "
    b"x-proxyuser-ip x-envoy-external-address tailscale-user-login".split()
)


# -- where a request comes from ---------------------------------------------------------------------------------------


def check_source(snapshot: Snapshot, headers: Mapping[bytes, bytes]) -> None:
    """Raises `foreign_origin` for a page of another site, `foreign_host` where the gateway is asked by a name that it
    does not have: checked without `clients`, and wherever `server.hosts` is set."""
    check_origin(headers)
    hosts = snapshot.server.hosts
    if hosts is None and snapshot.clients:
        return  # whoever asks has a key, which no page of another site knows
    host = headers.get(b"host")
    if host and not is_own_host(host, hosts or ()):
        raise GatewayError("foreign_host", _not_ours(host))


def check_origin(headers: Mapping[bytes, bytes]) -> None:
    """Raises `foreign_origin`."""
    origin = headers.get(b"origin")
    if origin is not None and is_foreign(origin.decode("latin-1"), headers.get(b"host", b"").decode("latin-1")):
        raise GatewayError("foreign_origin", FOREIGN)


def is_foreign(origin: str | None, host: str) -> bool:
    """Was this sent by a page that did not come from us? (No Origin: not by a page.)"""
    if origin is None:
        return False
    scheme, _, name = origin.lower().partition("://")
    port = _DEFAULT_PORTS.get(scheme, "")
    return not name or name.removesuffix(port) != host.lower().removesuffix(port)


@lru_cache(maxsize=256)
def is_own_host(host: bytes, hosts: tuple[str, ...] = ()) -> bool:
    """May the gateway be asked by this `Host`? By addresses, by names that only a local network has, and by `hosts`
    (lower case)."""
    text = host.decode("latin-1")
    if _is_address(text):
        return True  # an IPv6 address that forgot its brackets
    match = _HOST.fullmatch(text)
    if match is None:
        return False
    if match[1] is not None:
        return _is_address(match[1])
    name = match[2].lower().removesuffix(".")
    return "." not in name or name.endswith(LAN_NAMES) or name in hosts or _is_address(name)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _not_ours(host: bytes) -> str:
    return (
        f"This gateway is not known by the name '{shown(host)}'. Ask it by its address, as localhost or by a name of "
        "the local network, or name it under `server.hosts` in routes.yaml."
    )


def shown(value: bytes) -> str:
    """A client's own header, in the error that it gets."""
    return value[:SHOWN_MOST].decode("latin-1")


# -- this machine -----------------------------------------------------------------------------------------------------


def is_from_here(headers: Mapping[bytes, bytes], peer: str, http_version: str = "1.1") -> bool:
    """Did a program of this machine ask, by a name that can only mean this machine, and no proxy for somebody else?

    HTTP/1.0 counts as a proxy: nginx speaks it to its upstreams unless told otherwise, and adds none of the headers.
    """
    if http_version == "1.0" or any(name in _FORWARDED or name.startswith(b"x-forwarded") for name in headers):
        return False
    return is_loopback(peer) and is_loopback(hostname(headers.get(b"host", b"").decode("latin-1")))


def hostname(host: str) -> str:
    """Of a Host header, without its port."""
    try:
        return urlsplit("//" + host).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """An address or name that can only mean this machine. (The name is checked because a page's own name may be made
    to resolve to 127.0.0.1.)"""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


# -- what it carries --------------------------------------------------------------------------------------------------


def check_json(headers: Mapping[bytes, bytes]) -> None:
    """Raises `unsupported_media_type` for a body that is said to be no JSON: what a page of another site can send
    without asking (`text/plain`, forms). One that says nothing is read as JSON; from a page it has an `Origin`."""
    kind = headers.get(b"content-type")
    if kind and kind != b"application/json" and not is_json(kind):
        raise GatewayError("unsupported_media_type", NOT_JSON.format(kind=shown(kind)))


@lru_cache(maxsize=64)
def is_json(kind: bytes) -> bool:
    """`application/json`, `text/json`, `application/*+json`, with any parameters."""
    media = kind.partition(b";")[0].strip().lower()
    return media in (b"application/json", b"text/json") or (
        media.startswith(b"application/") and media.endswith(b"+json") and b"," not in media
    )


def has_body(headers: Mapping[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or bool(headers.get(b"content-length", b"").strip(b"0 "))
