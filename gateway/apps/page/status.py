"""`GET /status` with its parts, and `GET /events`: the present state and the events, for people and their tools.

None shows a secret. With `clients` all of them need a key of some client. The usage of other clients, and the
backends' own error texts (which may repeat a prompt), are shown to admins only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from functools import partial
from math import inf
from typing import Any, NamedTuple

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gateway import __version__
from gateway.admission.access import identify
from gateway.admission.capacity import capacity
from gateway.api.admin import may_admin
from gateway.api.answering import STALLED, until_left
from gateway.apps.page.history import History
from gateway.apps.page.node_view import view_nodes
from gateway.apps.page.usage_report import UsageReport
from gateway.config.snapshot import Alias, Client
from gateway.domain.backend import BackendState
from gateway.domain.drift import drift
from gateway.domain.events import Event, Subscription
from gateway.domain.slot_learning import WORDS
from gateway.proxy.exchange import CONNECTION
from gateway.proxy.header_map import header_map
from gateway.routing.alias_status import AWAY, AliasView, BackendView, public_reason, shown_to_admin
from gateway.runtime.gateway import Gateway

RECENT = 100  # events in /status
HEARTBEAT = 15.0  # seconds without an event until a comment is sent
BATCHES_EVERY = 1.0  # seconds between two reports of how far batches are
LOOK = 0.5  # seconds between two checks whether the gateway stops


def router(gateway: Gateway, figures: History) -> APIRouter:
    """`/status`, `/status/history`, `/status/usage` (JSON) and `/events` (SSE)."""
    routes = APIRouter()
    fresh = {"cache-control": "no-store"}
    reported = UsageReport(gateway.accounts.ledger.path, gateway.metrics.failures)

    def admitted(request: Request) -> Viewer:
        peer = request.client.host if request.client else "local"
        identity = identify(gateway.snapshot, header_map(request.scope["headers"]), peer)
        return Viewer(identity.client, may_admin(gateway, request))

    @routes.get("/status")
    async def status(request: Request) -> JSONResponse:
        viewer = admitted(request)
        answer = describe(gateway, figures)
        if viewer.admin:
            _add_words(gateway, answer)
        answer["batches"] = gateway.apps.batches_shown(viewer.may_see)
        answer["you"] = {"client": viewer.client.name if viewer.client is not None else None, "admin": viewer.admin}
        answer["budgets"] = {
            name: round(share, 4) for name, share in gateway.budget_shares().items() if viewer.may_see_budget(name)
        }
        return JSONResponse(answer, headers=fresh)

    @routes.get("/status/history")
    async def history(request: Request) -> Response:
        admitted(request)
        return Response(await _encode_history(figures), media_type="application/json", headers=fresh)

    @routes.get("/status/usage")
    async def usage(request: Request) -> JSONResponse:
        viewer = admitted(request)
        answer = await reported.read()
        for part in ("today", "week"):
            rows = [row for row in answer[part]["clients"] if viewer.may_see(row["client"])]
            answer = {**answer, part: {**answer[part], "clients": rows}}
        return JSONResponse(answer, headers=fresh)

    @routes.get("/events")
    async def events(request: Request, samples: bool = False) -> Response:
        """The events from now on; with `samples` also the fleet's numbers every few seconds, and its batches."""
        viewer = admitted(request)
        batches = partial(gateway.apps.batches_shown, viewer.may_see)
        return EventStream(gateway, figures if samples else None, words=viewer.admin, batches=batches)

    return routes


class Viewer(NamedTuple):
    """The caller. `client` None = there are no `clients` in routes.yaml, so every caller may see everything."""

    client: Client | None
    admin: bool

    def may_see(self, client: str) -> bool:
        """May the viewer see the usage of this client (`Client.owner`)?"""
        return self.client is None or self.admin or self.client.owner == client

    def may_see_budget(self, name: str) -> bool:
        whose = name.removeprefix("client ")
        return whose == name or self.may_see(whose)


# -- /status ----------------------------------------------------------------------------------------------------------


def describe(gateway: Gateway, figures: History) -> dict[str, Any]:
    """`{version, started, now, mode, modes, operation, stopping, memory, short, config, nodes: {name: ...}, backends:
    {name: ...}, aliases: {name: ...}, events: [...]}`. Times are Unix seconds, windows tokens. `mode`: the one in
    force; None without modes. `operation`: the switch, start or stop that is under way, else the last one; None = there
    was none. Without the backends' own error texts."""
    tracker = gateway.alias_status
    tracker.look()
    waiting = gateway.admission.queue_depth()
    latest, starts = figures.latest, gateway.admission.starts
    return {
        "version": __version__,
        "started": gateway.started,
        "now": time.time(),
        "mode": gateway.snapshot.mode,
        "modes": list(gateway.snapshot.modes),
        "operation": gateway.apps.operation(False),
        "stopping": gateway.stopping,
        "memory": gateway.memory.describe(),
        "short": list(gateway.short),
        "config": gateway.reloader.describe() if gateway.reloader is not None else None,
        "shared": gateway.shared.describe() if gateway.shared is not None else None,
        "nodes": view_nodes(gateway.snapshot.nodes, gateway.fleet.states, gateway.prober.machines),
        "backends": {
            name: {
                **_backend(state, tracker.backends[name], waiting.get(name, 0)),
                "idle": starts.idle(name) if starts is not None else None,
                "now": latest["backends"].get(name, {}),
            }
            for name, state in gateway.fleet.states.items()
        },
        "aliases": {
            name: {
                **_alias(view, tracker.since.get(name), gateway.snapshot.aliases[name]),
                "usd": tracker.cost(name),
                "now": figures.of_alias(name),
            }
            for name, view in tracker.aliases.items()
        },
        "events": [_event(event) for event in list(gateway.events)[-RECENT:]],
    }


def _add_words(gateway: Gateway, answer: dict[str, Any]) -> None:
    """Add the backends' own error texts, which may repeat a prompt; for admins only."""
    for name, state in gateway.fleet.states.items():
        answer["backends"][name] |= {
            "reason": state.loading(time.monotonic()) or shown_to_admin(state.health.reason),
            "observed": {check: asdict(seen) for check, seen in state.facts.observed.items()},
            "drift": [] if state.health.set_aside else [shown_to_admin(s) for s in drift(state, time.monotonic())],
        }
    for name, trouble in gateway.apps.troubles().items():
        answer["backends"].get(name, {})["trouble"] = trouble
    answer["operation"] = gateway.apps.operation(True)
    answer["events"] = [_event(event, words=True) for event in list(gateway.events)[-RECENT:]]


def _backend(state: BackendState, view: BackendView, waiting: int) -> dict[str, Any]:
    backend, health = state.backend, state.health
    return {
        "engine": backend.engine,
        "server": state.server,
        "front_end": state.reported.front_end,
        "cloud": backend.cloud,
        "nodes": list(backend.nodes),
        "run": backend.run,
        "serves": list(backend.serves),
        "state": view.state.value,
        "reason": state.loading(time.monotonic()) or view.reason,
        "since": _wall(health.since),
        "slots": state.known_slots,
        "slots_assumed": state.slots_why in ("assumed", "begun"),
        "slots_reason": WORDS[state.slots_why] if state.known_slots is not None else None,
        "inflight": state.inflight,
        "foreign": state.foreign,
        "elsewhere": state.shared.elsewhere,
        "room": capacity(state) if state.known_slots is not None else None,
        "queue": waiting,
        "window": state.window(time.monotonic()),
        "model": state.model,
        "held": _held(state),
        "version": state.reported.version,
        "flags": _flags(state),
        "observed": {check: {**asdict(seen), "seen": ""} for check, seen in state.facts.observed.items()},
        "drift": list(view.drift),
        "learned": _learned(state),
    }


def _held(state: BackendState) -> dict[str, Any] | None:
    """The model in the memory of a server that loads on demand; None = it does not tell. `window`: tokens. `bytes`: of
    memory. `until`: Unix seconds at which it is unloaded, None = never. `load_seconds`: of the last load."""
    if state.reported.loaded is None:
        return None
    held = state.held
    told = {"loaded": state.reported.loaded, "load_seconds": state.load_seconds}
    if held is None:
        return told
    until = None if held.until == inf else held.until
    return {**told, "window": held.window or None, "bytes": held.bytes or None, "until": until}


def _flags(state: BackendState) -> dict[str, Any]:
    """Flag of vLLM without dashes -> value, as its engine reports them, and what follows from them; empty = it reports
    none. `sleep-level`: 0 = awake."""
    flags, sample = state.reported.flags, state.progress.last
    known = {name: value for name, value in flags.values.items() if value is not None} if flags is not None else {}
    if known and sample is not None and sample.sleep_level is not None:
        known["sleep-level"] = int(sample.sleep_level)
    return known


def _learned(state: BackendState) -> dict[str, Any]:
    """What was learned about a backend. `lacks`: what it cannot do -> until when that is believed. `window`: as its
    refusals reported it. `taught`: each of these -> the request that taught it, and when. `window` and `taught` may
    be missing. Rates are tokens per second; None = not known yet."""
    now = time.monotonic()
    pause = state.cooldown_until
    lacks = {what: _wall(until) for what, until in state.facts.lacks.items() if until > now}
    refused = state.facts.refused_window
    window = refused.tokens if refused is not None and refused.until > now else None
    taught = {
        fact: {"request": one.request or None, "at": one.at}
        for fact, one in state.facts.taught.items()
        if fact in lacks or (fact == "window" and window is not None)
    }
    return {
        "lacks": lacks,
        **({"window": window} if window is not None else {}),
        **({"taught": taught} if taught else {}),
        "prefill_rate": state.progress.prefill,
        "decode_rate": state.progress.decode,
        "pause_until": _wall(pause) if pause > now else None,
    }


def _alias(view: AliasView, since: float | None, alias: Alias) -> dict[str, Any]:
    """`step` counts from 1. `since`: when it failed over; None while the first step serves, or is parked."""
    return {
        "steps": [list(step) for step in alias.steps],
        "implicit": alias.implicit,
        "course": view.course,
        "on_fallback": view.course in AWAY,
        "since": since,
        "serving": list(view.serving),
        "step": None if view.step is None else view.step + 1,
        "why": view.why,
    }


def _event(event: Event, *, words: bool = False) -> dict[str, Any]:
    """The event as JSON, without the fields that its kind does not use."""
    if event.kind == "config":
        return {"at": event.at, "kind": "config", "result": event.after, "reason": event.reason}
    if event.kind == "operation":
        named = {"backend": event.backend, "reason": event.reason}
        return {"at": event.at, "kind": "operation", **named, "state": event.after}
    fields = {**asdict(event), "reason": (shown_to_admin if words else public_reason)(event.reason)}
    if event.kind == "mode":
        return {k: v for k, v in fields.items() if k != "backend"}
    return fields if event.kind == "state" else {k: v for k, v in fields.items() if k not in ("before", "after")}


def _wall(monotonic: float) -> float:
    """Monotonic seconds as Unix seconds."""
    return round(time.time() - time.monotonic() + monotonic, 3)


async def _encode_history(figures: History) -> bytes:
    """`{at: [...], gateway: {...}, backends: {name: {series: [...]}}, nodes: {...}}`. Other tasks run between its
    parts, because an hour of many backends takes some milliseconds."""
    encoded: dict[str, Any] = {"at": [], "gateway": {}, "backends": {}, "nodes": {}}
    for part, value in figures.parts():
        if part in ("backends", "nodes"):
            name, series = value
            encoded[part][name] = msgspec.Raw(msgspec.json.encode(series))
        else:
            encoded[part] = value
        await asyncio.sleep(0)
    return msgspec.json.encode(encoded)


# -- /events ----------------------------------------------------------------------------------------------------------


class EventStream(Response):
    """One `event: state|drift|config|shared|mode|operation` with its JSON for each event from now on; a comment after
    every 15 s without an event; `event: dropped` if the reader was too slow for all events. With `figures` an `event:
    sample` every few seconds, always the newest one, and `event: batches` whenever these have changed, at most once a
    second: the viewer's, as in `/status`. Ends when the reader leaves or stalls, or when the gateway
    stops."""

    media_type = "text/event-stream"

    def __init__(
        self,
        gateway: Gateway,
        figures: History | None = None,
        *,
        words: bool = False,
        batches: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._gateway = gateway
        self._figures = figures
        self._words = words
        self._batches = batches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = asyncio.create_task(until_left(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            with Subscription(self._gateway.on_event) as subscription:
                async for piece in self._pieces(subscription, left):
                    async with asyncio.timeout(STALLED):
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            connection = scope.get("extensions", {}).get(CONNECTION)
            if connection is not None:  # a close would wait for the unread data without end
                connection.transport.abort()
        finally:
            left.cancel()

    async def _pieces(self, subscription: Subscription, left: asyncio.Task[None]) -> AsyncIterator[bytes]:
        yield b": events from now on\n\n"
        spoke = time.monotonic()
        latest: object = None  # the last sample that was sent
        batches, batches_at = self._batches() if self._figures is not None else [], spoke
        while not left.done() and not self._gateway.stopping:
            await subscription.wait(LOOK)
            events, dropped = subscription.drain()
            if dropped:
                yield _sse("dropped", {"dropped": dropped})
            for event in events:
                yield _sse(event.kind, _event(event, words=self._words))
            sample = self._figures.latest if self._figures is not None else None
            news = sample is not latest
            if news:
                latest = sample
                yield _sse("sample", sample)
            now = time.monotonic()
            due = self._figures is not None and now - batches_at >= BATCHES_EVERY
            if due and (found := self._batches()) != batches:
                batches, batches_at, news = found, now, True
                yield _sse("batches", found)
            if events or news:
                spoke = now
            elif now - spoke >= HEARTBEAT:
                spoke = now
                yield b": still here\n\n"


def _sse(name: str, value: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))
