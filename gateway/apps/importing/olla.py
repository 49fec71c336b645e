"""Olla's config: its static endpoints become backends.

Olla reads the models from its endpoints and balances by name; routes.yaml declares them. So each endpoint becomes a
backend under its own name, and the notes say what has to be added. Facts about the format: its configuration reference.
"""

from __future__ import annotations

import re
from typing import Any

from gateway.apps.importing.draft import Draft, DraftEntry, Notes, backend_name, unique
from gateway.apps.importing.source import SourceFile, count_of, listed, mapping, note_unread, text_of
from gateway.apps.importing.source_values import Secrets, host_words, mark_cloud, url_of, variable_name
from gateway.config.problems import Path
from gateway.config.units import format_size, parse_duration, parse_size

_ENGINES = {"vllm": None, "ollama": "ollama"}  # all others speak OpenAI's API


def convert(source: SourceFile) -> Draft:
    notes = source.notes()
    keys = Secrets(notes)
    draft = Draft()
    _server(source, notes, draft)
    path: Path = ("discovery", "static", "endpoints")
    static = mapping(source.section("discovery").get("static"))
    for i, value in enumerate(listed(static.get("endpoints"))):
        _endpoint((*path, i), mapping(value), source, notes, keys, draft)
    _note_order(path, listed(static.get("endpoints")), notes)
    note_unread(notes, (), source.data, "olla", "top")
    draft.notes = notes.in_order()
    return draft


def _server(source: SourceFile, notes: Notes, draft: Draft) -> None:
    server = source.section("server")
    host, port = text_of(server.get("host")) or "localhost", count_of(server.get("port")) or 40114
    shown = "127.0.0.1" if host == "localhost" else f"[{host}]" if ":" in host else host
    if not re.fullmatch(r"[\w.-]+|\[[0-9A-Fa-f:.]+\]", shown, re.ASCII) or port > 65535:
        notes.left_out(("server", "host"), "not an address to listen on", "write server: {listen: 127.0.0.1:4000}")
    elif "host" in server or "port" in server:
        draft.server["listen"] = f"{shown}:{port}"
        base = f"their base URL is http://HOST:{port}/v1 now"
        notes.changed(("server",), "clients no longer ask under /olla/...", base)
    limits = mapping(server.get("request_limits"))
    if (size := count_of(limits.get("max_body_size"))) is not None:
        short = format_size(size)
        draft.server["max_body"] = short if parse_size(short) == size else f"{size}B"
    if (shutdown := _duration(server.get("shutdown_timeout"))) is not None:
        draft.server["shutdown"] = shutdown
    note_unread(notes, ("server",), server, "olla", "server")


def _duration(value: Any) -> str | None:
    """A duration in the form of routes.yaml (`5s`); None for any other, such as Go's `1m30s`."""
    text = text_of(value)
    try:
        return text if text is not None and parse_duration(text) else None
    except ValueError:
        return None


def _endpoint(
    path: Path, endpoint: dict[str, Any], source: SourceFile, notes: Notes, keys: Secrets, draft: Draft
) -> None:
    url = url_of(endpoint.get("url"), (*path, "url"), notes)
    if url is None:
        notes.left_out(path, "an endpoint without a usable url")
        return
    kind: str = text_of(endpoint.get("type")) or "auto"
    engine = _ENGINES.get(kind, "openai")
    entry = DraftEntry({**({"engine": engine} if engine else {}), "url": url})
    name = unique(backend_name(text_of(endpoint.get("name")) or "endpoint"), draft.backends, *host_words(url))
    if engine == "ollama":
        hint = "write model: and context: under the backend, one backend for each model; `gateway init HOST` lists them"
        notes.to_do(path, f"backend '{name}' needs the name of its model", hint)
    if kind == "auto":
        notes.changed((*path, "type"), "taken for a server that speaks OpenAI's API", "if it is a vLLM, delete engine")
    mark_cloud(entry.keys, (*path, "url"), notes, known=False)
    if (key := _key(mapping(endpoint.get("auth")), (*path, "auth"), name, notes, keys)) is not None:
        entry.keys["api_key"] = key
    _health(endpoint, engine, entry.keys)
    note_unread(notes, path, endpoint, "olla", "endpoint")
    if endpoint.get("model_filter") is not None:
        notes.left_out((*path, "model_filter"), "a backend serves the model that it names", "write model: NAME")
    entry.comment = source.place(path)
    draft.backends[name] = entry


def _key(auth: dict[str, Any], path: Path, name: str, notes: Notes, keys: Secrets) -> str | None:
    kind = text_of(auth.get("type"))
    if kind is None:
        return None
    if kind not in ("bearer", "api_key"):
        notes.left_out(path, f"'{kind}' is not spoken: keys go out as bearer tokens")
        return None
    if kind == "api_key":
        notes.changed(path, "the key goes out as a bearer token, not in a header of its own")
    field = "token" if kind == "bearer" else "key"
    if (file := text_of(auth.get(f"{field}_file"))) is not None:
        return f"${{file:{file}}}"
    written = text_of(auth.get(field))
    return keys.key(written, (*path, field), variable_name(f"{name}_API_KEY")) if written else None


def _health(endpoint: dict[str, Any], engine: str | None, keys: dict[str, Any]) -> None:
    health: dict[str, Any] = {}
    if (every := _duration(endpoint.get("check_interval"))) is not None:
        health["every"] = every
    check = text_of(endpoint.get("health_check_url"))
    if engine is None and check is not None and check.startswith("/") and check != "/health":
        health["path"] = check
    if health:
        keys["health"] = health


def _note_order(path: Path, endpoints: list[Any], notes: Notes) -> None:
    """Add a note about priorities: they would be the order of an alias' steps, which cannot be inferred."""
    if len({text_of(mapping(endpoint).get("priority")) for endpoint in endpoints}) > 1:
        hint = "write aliases: {MODEL: [[FIRST, BESIDE IT], LATER]} with the endpoints that serve the same model"
        notes.to_do((*path, 0, "priority"), "priorities are the order of steps in an alias", hint)
