"""URLs: typos are errors, because a wrong URL is where prompts would go."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

from gateway.config.problems import Path, Report
from gateway.config.secret import shown
from gateway.config.suggest import closest

_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?", re.ASCII)
REDIS_SCHEMES = ("redis", "rediss", "unix")
_ENDPOINTS = (
    *("/chat/completions", "/completions", "/models", "/responses", "/messages", "/embeddings", "/rerank", "/score"),
    *("/audio/speech", "/audio/transcriptions", "/audio/translations", "/api/chat", "/api/generate"),
)


def check_url(url: str, path: Path, report: Report, *, base: bool = True) -> str | None:
    """`url` without a trailing slash, or None when it is no usable http(s) URL (reported).

    `base` = other paths are put behind it, so it must not end in an endpoint's path.
    """
    problem = _problem(url, base)
    if problem is None:
        return str(url).rstrip("/")
    message, hint = problem
    report.error(path, message, hint)
    return None


def _problem(url: str, base: bool) -> tuple[str, str | None] | None:
    given = shown(url)
    scheme, separator, _ = url.partition("://")
    if not separator:
        return _without_scheme(url, given)
    if scheme not in ("http", "https"):
        near = closest(scheme, ("http", "https"))
        hint = f"did you mean '{near}://'?" if near else "only http:// and https:// are spoken"
        return f"{given} has an unknown scheme", hint
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return f"{given} is not a URL", "the port is a number up to 65535"
    if not host or port == 0:
        return f"{given} names no {'port' if host else 'host'}", None
    if parts.username is not None or parts.password is not None:
        return "credentials in the URL", "put them into api_key"
    return _host_problem(host, given) or _path_problem(parts, given, base)


def _without_scheme(url: str, given: str) -> tuple[str, str | None]:
    if re.match(r"https?[:/;]", url):
        return f"{given} is not a URL", "a URL starts with http:// or https://"
    simple = re.fullmatch(r"[\w.\[\]:-]+(/\S*)?", url, re.ASCII)
    return f"{given} has no scheme", f"write http://{url}" if simple and "$" not in given else "write http://HOST:PORT"


def _host_problem(host: str, given: str) -> tuple[str, str | None] | None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if host.rstrip(".").rpartition(".")[2].isdigit():
            return f"{given}: its host is not an address", "four numbers from 0 to 255"
        if not _HOST.fullmatch(host):
            return f"{given}: its host is not a name", None
    return None


def _path_problem(parts: SplitResult, given: str, base: bool) -> tuple[str, str | None] | None:
    if not parts.path.isascii() or not parts.path.isprintable() or " " in parts.path:
        return f"{given}: its path holds a character that a URL cannot", None
    if not base:
        return None
    if parts.query or parts.fragment:
        return f"a '{'?' if parts.query else '#'}' part in the URL", "give the base URL only"
    if ended := next((e for e in _ENDPOINTS if parts.path.rstrip("/").endswith(e)), None):
        return f"{given} ends in an endpoint's path", f"give the base URL, without {ended}"
    return None


def receiver_problem(url: str) -> tuple[str, str | None] | None:
    """(what is wrong, what to do) with the http(s) URL of a receiver of alerts or traces; None = nothing. Only what no
    client could send to is wrong. No message shows the URL, since it may hold a token or a password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "is not a URL", "http://HOST:PORT/PATH; the port is a number up to 65535"
    if not host or port == 0:
        return f"names no {'port' if host else 'host'}", "write http://HOST:PORT/PATH"
    # A name outside ASCII is one that the clients encode.
    if host.isascii() and (problem := _host_problem(host, "")) is not None:
        return problem[0].removeprefix(": "), problem[1] or "write http://HOST:PORT/PATH"
    return None


def redis_problem(url: str) -> tuple[str, str | None] | None:
    """(what is wrong, what to do) with a URL of one of `REDIS_SCHEMES`; None = nothing. This is what the Redis library
    makes of it, without a connection. No message shows the URL, since it may hold a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        return "is not a URL", "redis://HOST:PORT/0; in a password / ? # @ are written %2F %3F %23 %40"
    if parts.scheme == "unix":
        if len(parts.path) < 2:
            return "names no socket", "write unix:///run/redis/redis.sock"
    elif re.fullmatch(r"(/\d*)?", parts.path, re.ASCII) is None:
        return "its database is not a number", "write redis://HOST:PORT/0"
    return _redis_parameters(url)


def _redis_parameters(url: str) -> tuple[str, str | None] | None:
    """Imported only where gateways share something: the library takes 15 MB."""
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    known = "such as socket_timeout, ssl_ca_certs; db where it is a socket"
    try:
        Redis.from_url(url).connection_pool.make_connection()  # type: ignore[no-untyped-call]  # it has no type
    except TypeError as error:
        return f"its parameter {_parameter_of(error)} is unknown", known
    except ValueError as error:
        return f"its parameter {_parameter_of(error)} has a value that cannot be used", None
    except RedisError:  # the only one it looks at before it connects
        return "its parameter 'ssl_cert_reqs' has a value that cannot be used", "write none, optional or required"
    return None


def _parameter_of(error: Exception) -> str:
    """The parameter that the library complains of."""
    found = re.search(r"'\w+'", str(error))
    return found[0] if found else "(one of them)"


def is_address(text: str | None) -> bool:
    """Whether the text is an IP address, and no name."""
    try:
        ipaddress.ip_address(text or "")
    except ValueError:
        return False
    return True


def is_private_host(host: str) -> bool:
    """True for addresses and names that cannot be outside the LAN: private, loopback and link-local addresses,
    `localhost`, names without a dot, and `.local`, `.lan`, `.home.arpa`, `.internal`."""
    host = host.strip("[]").lower()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".localhost", ".local", ".lan", ".home.arpa", ".internal"))
    return address.is_private or address.is_loopback or address.is_link_local
