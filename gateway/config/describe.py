"""Each alias of a snapshot with its backends, windows and slots, as `gateway check` prints it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from gateway.config.aliases import HERMES_WINDOW, first_window
from gateway.config.snapshot import Alias, Backend, Snapshot

_CLOUD_WHEN = {
    "down": "down",
    "too_long": "too small for the request",
    "incapable": "unable to serve the request",
    "busy": "busy",
}


@dataclass(frozen=True)
class Member:
    """One backend of one step (counted from 1) of an alias. `window` in tokens; None = read from the backend later.
    `skipped` says in words which requests do not go there."""

    step: int
    backend: str
    engine: str
    host: str
    window: int | None
    slots: str
    tools: str
    thinking: str
    cloud: bool
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class AliasFacts:
    """One alias. `window` in tokens: what fits into every backend of its first step; None = one of them is unknown.
    `leaves_lan` are its cloud backends, `cloud_when` says in words when they are used."""

    name: str
    also: tuple[str, ...]
    implicit: bool
    ask_all: bool
    window: int | None
    leaves_lan: tuple[str, ...]
    cloud_when: str
    members: tuple[Member, ...]

    @property
    def too_small_for_hermes(self) -> bool:
        return self.window is not None and self.window < HERMES_WINDOW

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def describe(snapshot: Snapshot) -> list[AliasFacts]:
    return [_facts(alias, snapshot) for alias in snapshot.aliases.values()]


def _facts(alias: Alias, snapshot: Snapshot) -> AliasFacts:
    steps = alias.steps or ((alias.ask_all,) if alias.ask_all else ())
    when = " or ".join(_CLOUD_WHEN[word] for word in alias.cloud_when) or "never entered"
    return AliasFacts(
        name=alias.name,
        also=alias.also,
        implicit=alias.implicit,
        ask_all=bool(alias.ask_all),
        window=first_window(steps, snapshot.backends),
        leaves_lan=snapshot.leaves_lan(alias),
        cloud_when=when,
        members=tuple(_members(steps, snapshot.backends, when)),
    )


def _members(steps: tuple[tuple[str, ...], ...], backends: Mapping[str, Backend], when: str) -> Iterator[Member]:
    largest = max((backends[n].context or 0 for step in steps for n in step), default=0)
    for number, step in enumerate(steps, 1):
        for name in step:
            backend = backends[name]
            slots = "unlimited" if backend.slots is None else str(backend.slots)
            yield Member(
                step=number,
                backend=name,
                engine=backend.engine,
                host=urlsplit(backend.url or "").netloc or "litellm",
                window=backend.context,
                slots=slots + (" (assumed)" if backend.slots_assumed else ""),
                tools=_tools(backend),
                thinking=backend.thinking or "-",
                cloud=backend.cloud,
                skipped=tuple(_skipped(backend, number, largest, when)),
            )


def _tools(backend: Backend) -> str:
    if backend.engine == "http":
        return "-"
    if backend.tool_parser is None:
        return "yes" if backend.auto_tools or backend.engine == "ollama" else "learned"
    if backend.tool_parser != "none" and not backend.auto_tools:
        return f"{backend.tool_parser} without auto"
    return backend.tool_parser


def _skipped(backend: Backend, number: int, largest: int, when: str) -> Iterator[str]:
    if backend.engine == "http":
        yield f"for anything but {', '.join(backend.serves)}"
        return
    if backend.run == "on_demand":
        yield "while it is not there (on_demand)"
    if backend.cloud and number > 1:
        yield f"unless everything before is {when}"
    if backend.cloud:
        yield "for local_only clients and requests"
    if backend.context is not None and backend.context < largest:
        yield f"beyond {backend.context:,} tokens"
    if backend.tool_parser == "none" or backend.auto_tools is False:
        yield "for requests with tools"
    if backend.engine == "ollama":
        yield "when a tool call is required (Ollama ignores that)"
    if backend.vision is False:
        yield "for images"
