"""Discovers servers for `gateway init`: a few GETs to each port, all ports at once, with short timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from gateway.apps.importing.servers import (
    MODELS,
    PATHS,
    SHOW,
    FoundServer,
    ServerReply,
    further_paths,
    identify,
    tagged,
)
from gateway.transport.bounded import Oversized, async_client, fetch

# Where vLLM, Ollama, LM Studio (1234), text-generation-inference (3000), SGLang (30000) and other servers listen by
# default or by habit; the gateway's own 4000 is not among them.
PORTS = (1234, 3000, 8000, 8001, 8002, 8003, 8009, 8015, 8080, 8888, 11434, 30000)
EXPORTER = 9835  # the port of a Spark's exporter
CONNECT, READ = 1.0, 4.0  # seconds
AT_ONCE = 32  # ports at a time
ANSWER_MOST = 4 * 1024 * 1024  # bytes of an answer
SHOWING = 20.0  # seconds for the details of one server's models
_ROUNDS = 3  # of questions to one server: what it is, what only that server shows, what it tells of itself
_MOST_SHOWN = 40  # models of one Ollama whose details are read

OnSeen = Callable[[FoundServer], None]


class BadTarget(Exception):
    """Not a host, host:port or URL; the text says how to write one."""


@dataclass(frozen=True)
class Scan:
    """`servers` answered, in the order of the targets; `exporters` are the hosts with a metrics exporter (host ->
    URL)."""

    servers: list[FoundServer]
    exporters: dict[str, str]


def targets(hosts: Iterable[str], ports: Iterable[int]) -> list[str]:
    """Root URLs to look at: each host with all ports, one that names a port (or is a URL) alone. Raises BadTarget."""
    ports = list(ports)
    found: list[str] = []
    for host in hosts:
        try:
            parts = urlsplit(host if "://" in host else f"//{host}")
            name, port = parts.hostname, parts.port
        except ValueError:
            raise BadTarget(f"'{host}' is no host: write HOST, HOST:PORT or http://HOST:PORT") from None
        scheme = parts.scheme or "http"
        if not name or scheme not in ("http", "https") or parts.path.rstrip("/") not in ("", "/v1") or " " in host:
            raise BadTarget(f"'{host}' is no host: write HOST, HOST:PORT or http://HOST:PORT")
        shown = f"[{name}]" if ":" in name else name
        given = [port] if port is not None else [443] if scheme == "https" else ports
        found += [f"{scheme}://{shown}:{one}" for one in given]
    return list(dict.fromkeys(found))


async def scan(urls: list[str], on_seen: OnSeen) -> Scan:
    """Scan all URLs. `on_seen` is called for each server when it has answered."""
    limits = asyncio.Semaphore(AT_ONCE)
    timeout = httpx.Timeout(READ, connect=CONNECT)
    async with async_client(timeout) as client:

        async def identified(url: str) -> FoundServer | None:
            async with limits:
                server = await _identify(client, url)
            if server is not None:
                on_seen(server)
            return server

        seen = await asyncio.gather(*(identified(url) for url in urls))
        servers = [server for server in seen if server is not None]
        hosts = list(dict.fromkeys(urlsplit(server.url).hostname or "" for server in servers))
        found = await asyncio.gather(*(_exporter(client, host) for host in hosts))
    return Scan(servers, {host: url for host, url in zip(hosts, found, strict=True) if url is not None})


async def _identify(client: httpx.AsyncClient, url: str) -> FoundServer | None:
    """The server at `url`; None if nothing answers."""
    first = await _get(client, url, MODELS)
    if first is None:
        return None
    replies = {MODELS: first}
    paths = [path for path in PATHS if path != MODELS]
    for _ in range(_ROUNDS):
        for path, reply in zip(paths, await asyncio.gather(*(_get(client, url, path) for path in paths)), strict=True):
            replies[path] = reply or ServerReply(0)
        paths = further_paths(replies)
    until = asyncio.get_running_loop().time() + SHOWING
    for name in tagged(replies)[:_MOST_SHOWN]:
        if asyncio.get_running_loop().time() > until:
            break
        shown = await _ask(client, "POST", url + SHOW, json={"model": name})
        if shown is not None:
            replies[f"{SHOW}:{name}"] = shown
    return identify(url, replies)


async def _get(client: httpx.AsyncClient, url: str, path: str) -> ServerReply | None:
    return await _ask(client, "GET", url + path)


async def _ask(client: httpx.AsyncClient, method: str, url: str, **options: Any) -> ServerReply | None:
    try:
        response = await fetch(client, method, url, most=ANSWER_MOST, seconds=CONNECT + READ, **options)
    except Oversized as error:
        return ServerReply(error.status)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError):
        return None
    try:
        return ServerReply(response.status_code, response.json(), response.headers)
    except (ValueError, RecursionError):
        return ServerReply(response.status_code)


async def _exporter(client: httpx.AsyncClient, host: str) -> str | None:
    """The URL of the host's metrics exporter, where one answers at its usual port; else None."""
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{EXPORTER}/metrics"
    reply = await _ask(client, "GET", url)
    return url if reply is not None and reply.status == 200 else None
