"""What routes.yaml means for each alias: the content of `gateway check`. Pure.

The planner decides which requests a backend does not get (routing/serving.py), for a fleet in which every backend is
ready and nothing was learned. Everything else comes from the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from gateway.config.aliases import HERMES_WINDOW, first_window
from gateway.config.snapshot import Alias, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.engine_traits import traits_of
from gateway.domain.tokens import room_needed
from gateway.launch.families import family_of
from gateway.routing.needs import resort_of
from gateway.routing.plan import make_plan
from gateway.routing.serving import Need, all_ready, reason_of, request_with, with_tokens
from gateway.routing.why_not import SkipReason

# Need -> why a backend gets no requests with it, and whether `on_unsupported` gives it those that no other can serve.
Unmet = dict[Need, tuple[SkipReason, bool]]
_NOW = 0.0  # the plan of a fleet that is all ready does not depend on the time

_CLOUD_WHEN = {
    "down": "down",
    "too_long": "too small for the request",
    "incapable": "unable to serve the request",
    "busy": "busy",
}

_WITHOUT: Mapping[Need, str] = {
    Need.JSON_SCHEMA: "for a JSON schema",
    Need.IMAGES: "for images",
    Need.AUDIO: "for audio",
    Need.THINKING_ON: "when thinking on is demanded",
    Need.THINKING_OFF: "when thinking off is demanded",
    Need.COMPLETIONS: "for /completions",
    Need.EMBEDDINGS: "for /embeddings",
}


@dataclass(frozen=True)
class StepBackend:
    """One backend in one step (counted from 1) of an alias. `window` in tokens; None: read from the backend.
    `thinking`: optional, always, never, or "-" = not known. `thinks_by_default`: of a model whose thinking is optional,
    whether it thinks unless told not to. `skipped`: for what it is not used, each to be read behind the word "skipped".
    """

    step: int
    backend: str
    engine: str
    host: str
    window: int | None
    slots: str
    tools: str
    thinking: str
    thinks_by_default: bool | None
    cloud: bool
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class AliasFacts:
    """An alias as `check` shows it. `leaves_lan` are its cloud backends."""

    name: str
    also: tuple[str, ...]
    implicit: bool
    ask_all: bool
    window: int | None
    leaves_lan: tuple[str, ...]
    cloud_when: str
    members: tuple[StepBackend, ...]

    @property
    def too_small_for_hermes(self) -> bool:
        return self.window is not None and self.window < HERMES_WINDOW

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def alias_facts(snapshot: Snapshot) -> list[AliasFacts]:
    states = all_ready(snapshot)
    return [_facts(alias, snapshot, states) for alias in snapshot.aliases.values()]


def _facts(alias: Alias, snapshot: Snapshot, states: Mapping[str, BackendState]) -> AliasFacts:
    unmet = _unmet_needs(alias, states)
    return AliasFacts(
        name=alias.name,
        also=alias.also,
        implicit=alias.implicit,
        ask_all=bool(alias.ask_all),
        window=first_window(alias.steps, snapshot.backends),
        leaves_lan=snapshot.leaves_lan(alias),
        cloud_when=_when(alias) or "never entered",
        members=tuple(
            _member(states[name], number, tuple(_skipped(alias, states, states[name], number, unmet[name])))
            for number, step in enumerate(alias.steps, 1)
            for name in step
        ),
    )


def _when(alias: Alias) -> str:
    return " or ".join(_CLOUD_WHEN[word] for word in alias.cloud_when)


def _member(state: BackendState, step: int, skipped: tuple[str, ...]) -> StepBackend:
    backend = state.backend
    slots = "unlimited" if backend.slots is None else str(backend.slots)
    return StepBackend(
        step=step,
        backend=backend.name,
        engine=backend.engine,
        host=urlsplit(backend.url or "").netloc or "litellm",
        window=backend.context,
        slots=slots + (" (assumed)" if backend.slots_assumed else ""),
        tools=_tools(state),
        thinking=state.capabilities(_NOW).thinking or "-",
        thinks_by_default=_thinks_by_default(state),
        cloud=backend.cloud,
        skipped=skipped,
    )


def _tools(state: BackendState) -> str:
    backend, able = state.backend, state.capabilities(_NOW)
    if not traits_of(backend).chats:
        return "-"
    if backend.tool_parser is None:
        emulated = ", required calls emulated" if traits_of(backend).emulates_calls else ""
        return "yes" if able.tools else f"learned{emulated}"
    return backend.tool_parser + (" without auto" if able.tools is False and backend.tool_parser != "none" else "")


def _thinks_by_default(state: BackendState) -> bool | None:
    """Whether it thinks unless told not to: as it is launched, else as its family does. None if not known, or no
    choice."""
    able, backend = state.capabilities(_NOW), state.backend
    if able.thinking != "optional":
        return None
    flags = backend.launch.parsed.flags if backend.launch is not None else {}
    kwargs = flags.get("default-chat-template-kwargs")
    launched = kwargs.get(able.switch) if isinstance(kwargs, Mapping) and able.switch else None
    if isinstance(launched, bool):
        return launched
    family = family_of(backend.model)
    return None if family is None else family.thinks_by_default


# -- when it is skipped -----------------------------------------------------------------------------------------------


def _skipped(
    alias: Alias, states: Mapping[str, BackendState], state: BackendState, number: int, unmet: Unmet
) -> Iterator[str]:
    backend = state.backend
    if backend.parked is not None:
        yield f"always: it is parked ({backend.parked})"
        return
    if backend.serves and not traits_of(backend).chats:
        yield f"for anything but {', '.join(backend.serves)}"
        return
    if backend.run == "on_request":
        yield "while it is not there and cannot be started (on_request)"
    elif backend.run != "always":
        yield "while it is not there (on_demand)"
    if backend.cloud and any(not states[name].backend.cloud for step in alias.steps[: number - 1] for name in step):
        if not alias.cloud_when:
            yield "always: cloud_when of the alias is empty"
            return
        yield f"unless everything before is {_when(alias)}"
    if backend.cloud:
        yield "for local_only clients and requests"
    if Need.CHAT in unmet:
        yield f"always: it {reason_of(unmet[Need.CHAT][0], state, _NOW)}"
        return
    if Need.LONG in unmet and backend.context is not None:
        yield f"beyond {backend.context:,} tokens"
    yield from _tool_calls(alias, unmet)
    yield from (words for need, words in _WITHOUT.items() if need in unmet)


def _tool_calls(alias: Alias, unmet: Unmet) -> Iterator[str]:
    tools, call = unmet.get(Need.TOOLS), unmet.get(Need.CALL) or unmet.get(Need.NAMED_CALL)
    words = "for requests with tools" if tools else "when a tool call is required"
    if tools and not call:
        words += ", unless a call is required"
    lacks = [lack for lack in (tools, call) if lack]
    if lacks:
        rescued = all(rescued for _, rescued in lacks)
        yield words + (f" (on_unsupported: {alias.on_unsupported}, when no other can)" if rescued else "")


def _unmet_needs(alias: Alias, states: Mapping[str, BackendState]) -> dict[str, Unmet]:
    """Backend -> the needs with which it gets no request of this alias; `{}` = it gets every request."""
    found: dict[str, Unmet] = {name: {} for step in alias.steps for name in step}
    largest = max((states[name].window(_NOW) or 0 for name in found), default=0)
    for need in Need:
        request = request_with(need)
        if need is Need.LONG:
            with_tokens(request, max(0, largest - room_needed(request, alias.min_max_tokens)), states)
        resort = resort_of(alias, None) if request.tools else None
        last = [] if resort is None else make_plan(alias, states, request, _NOW, resort=resort).candidates
        rescued = {candidate.state.name for candidate in last}
        for skip in make_plan(alias, states, request, _NOW).skipped:
            why = SkipReason(skip.kind, skip.reason, skip.lacks)
            found[skip.state.name][need] = (why, skip.state.name in rescued)
    return found
