"""The URL of `server.shared`: what the Redis library makes of it, without a connection. Nothing of it is shown, since
it may hold a password."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

SCHEMES = ("redis", "rediss", "unix")


def problem_of(url: str) -> tuple[str, str | None] | None:
    """(what is wrong, what to do) with a URL of one of the schemes; None = nothing."""
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
    return _parameters(url)


def _parameters(url: str) -> tuple[str, str | None] | None:
    """Imported only where gateways share something: the library takes 15 MB."""
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    known = "such as socket_timeout, ssl_ca_certs; db where it is a socket"
    try:
        Redis.from_url(url).connection_pool.make_connection()  # type: ignore[no-untyped-call]  # it has no type
    except TypeError as error:
        return f"its parameter {_named(error)} is unknown", known
    except ValueError as error:
        return f"its parameter {_named(error)} has a value that cannot be used", None
    except RedisError:  # the only one it looks at before it connects
        return "its parameter 'ssl_cert_reqs' has a value that cannot be used", "write none, optional or required"
    return None


def _named(error: Exception) -> str:
    """The parameter that the library complains of."""
    found = re.search(r"'\w+'", str(error))
    return found[0] if found else "(one of them)"
