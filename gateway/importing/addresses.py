"""URLs of the source as a backend has them, and what has to be said about where they lead."""

from __future__ import annotations

import ipaddress
import re
from typing import Any
from urllib.parse import urlsplit

from gateway.config.problems import Path, Report
from gateway.config.snapshot import is_private_host
from gateway.config.urls import check_url
from gateway.importing.draft import Notes
from gateway.importing.keys import reference
from gateway.importing.source import text_of

_ENDPOINT = re.compile(r"/(chat/completions|completions|embeddings|models|api/(chat|generate|embed))/?$")


def url_of(value: Any, path: Path, notes: Notes) -> str | None:
    """The base URL that `value` says, `${X}` for a reference; None when there is none, or no usable one (noted)."""
    given = text_of(value)
    if given is None:
        return None
    if (found := reference(given)) is not None:
        notes.to_do(path, f"the address is in the variable {found}", "set it to an http:// URL")
        return found
    if "://" not in given:
        given = f"http://{given}"
    report = Report(notes.file)
    url = check_url(_ENDPOINT.sub("", given), path, report)
    if url is None:
        problem = report.errors[0]
        notes.left_out(path, problem.message, problem.hint)
    return url


def leaves_lan(url: str) -> bool:
    """By its host. False for a URL that is not known yet (`${X}`): loading the file asks then."""
    return "${" not in url and not is_private_host(urlsplit(url).hostname or "")


def say_cloud(keys: dict[str, Any], path: Path, notes: Notes, *, known: bool) -> None:
    """Write `cloud: true` where the URL leads out of the LAN; not a `known` cloud = somebody should look at it."""
    url = keys.get("url")
    if url is None or not leaves_lan(url) or keys.get("engine") == "litellm":
        return
    keys["cloud"] = True
    if not known:
        host = urlsplit(url).hostname
        message = f"'{host}' is not a private address, so it is taken for a cloud"
        notes.to_do(path, message, "write cloud: false under the backend if prompts stay inside")


def host_words(url: str | None) -> tuple[str, ...]:
    """Short words that tell two URLs apart: the host (of an address its last number), and with the port."""
    if not url or "${" in url:
        return ()
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        word = re.split(r"[.:]", str(ipaddress.ip_address(host)))[-1]
    except ValueError:
        word = host.partition(".")[0]
    return (word, f"{word}-{parts.port}") if parts.port else (word,)
