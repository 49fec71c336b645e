"""What the core asks of the apps. It imports none of them: those in gateway/apps/ are found by their folder at the
start, so any of them, or the whole folder, may be deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gateway.config.snapshot import Snapshot
from gateway.domain.endpoints import PASSED_ON, Endpoint
from gateway.domain.request import InferenceRequest
from gateway.proxy.exchange import Exchange
from gateway.proxy.handler import RequestHandler
from gateway.proxy.services import Services

if TYPE_CHECKING:
    from fastapi import APIRouter

FOLDER = Path(__file__).parents[1] / "apps"

Translator = Callable[[Exchange], Exchange]
Routers = Sequence["APIRouter"]
Handler = Callable[[Services, Endpoint, Any], RequestHandler]
Tap = Callable[[Endpoint, Exchange], Exchange]
ReadRequest = Callable[[str, Any], InferenceRequest]
BatchesShown = Callable[[Callable[[str], bool]], list[dict[str, Any]]]
Preflight = Callable[[Snapshot, str, str, bool], "PreflightFindings"]


class PreflightFindings(NamedTuple):
    """Lines for people, each problem followed by what mends it. `failures`: what keeps a backend from starting."""

    failures: Sequence[str] = ()
    warnings: Sequence[str] = ()


class Component(Protocol):
    """An object that is opened and closed with the gateway."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...


class SharedFleet(Component, Protocol):
    """The gateways that share the fleet with this one. Opened and closed apart from the other components."""

    operations: Any

    def publish_mode(self, mode: str, at: float) -> None:
        """The mode was chosen here at `at` (Unix ms)."""

    def describe(self) -> dict[str, Any]:
        """For `/status`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """What one app adds to a gateway. The function `app(gateway)` in `gateway/apps/<name>/app.py` makes it, at the
    start: what takes long to import is imported by the calls. An app of paths alone has none: its `api.py` has a
    `router(gateway)`, and its `__init__.py` the PATHS where these are not below `/admin`.

    `part`: the object that is `gateway.apps.<name>`. `follow` is called with each snapshot that is about to be put in
    force after the start. `begin_stop` is called when the gateway begins to stop, long before `part` is closed. `lost`:
    kind of record -> how many the app has dropped. `paths`: how the app's paths begin, below `/` or `/v1/`; `routers`
    makes the routers for them. `uploads`: the whole paths to which a file may be sent. `translators`: name of an
    inference endpoint that is no chat -> wraps its exchange in that of a chat. `handlers`: name of an inference
    endpoint whose answers are passed on -> makes the handler of a request. `read_request`: reads the request of
    `gateway explain`. `operation`: the operation on the fleet that is under way, else the last one, for `/status`; with
    what its commands wrote, or without. `troubles`: backend -> its engine's last words and what mends it, for admins.
    `recovered`: backend that hangs -> its last restart, in words, for alerts. `acceptance`: backend that drafts ->
    share of its draft tokens that were accepted. `batches`: the batches for `/status` of the clients that the viewer
    may see.
    `preflight`: what may keep a backend from starting on its nodes with a profile ("" = with none)."""

    part: Component | None = None
    follow: Callable[[Snapshot], Awaitable[None]] | None = None
    begin_stop: Callable[[], None] = lambda: None
    lost: Callable[[], Mapping[str, int]] = dict
    paths: frozenset[str] = frozenset()
    routers: Callable[[], Routers] = tuple
    uploads: tuple[str, ...] = ()
    translators: Mapping[str, Translator] = field(default_factory=dict)
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    read_request: ReadRequest | None = None
    operation: Callable[[bool], dict[str, Any] | None] | None = None
    troubles: Callable[[], Mapping[str, Any]] = dict
    recovered: Callable[[], Mapping[str, str]] = dict
    acceptance: Callable[[], Mapping[str, float]] = dict
    batches: BatchesShown = lambda _: []
    preflight: Preflight | None = None


def _extension(name: str, gateway: object) -> Extension:
    package = f"gateway.apps.{name}"
    if (FOLDER / name / "app.py").exists():
        made: Extension = import_module(f"{package}.app").app(gateway)
        return made
    paths: frozenset[str] = getattr(import_module(package), "PATHS", frozenset())
    return Extension(paths=paths, routers=lambda: (import_module(f"{package}.api").router(gateway),))


class Apps:
    """The apps of one gateway. `gateway.apps.batches` is the part of the app in the folder `batches`; an app without a
    part, or without its folder, is an AttributeError."""

    def __init__(self, gateway: object) -> None:
        names = sorted({path.parent.name for path in (*FOLDER.glob("*/app.py"), *FOLDER.glob("*/api.py"))})
        found = {name: _extension(name, gateway) for name in names}
        self._parts = {name: app.part for name, app in found.items() if app.part is not None}
        self._apps = apps = tuple(found.values())
        self.tap: Tap | None = None  # wraps each exchange with a client; set by an app while it captures bodies
        self._translators = {name: wrap for app in apps for name, wrap in app.translators.items()}
        self.handlers = {name: make for app in apps for name, make in app.handlers.items()}
        self.paths = frozenset(path for app in apps for path in app.paths)
        self.uploads = frozenset(path for app in apps for path in app.uploads)
        self.read_request = next((app.read_request for app in apps if app.read_request is not None), None)
        self.operation = next((app.operation for app in apps if app.operation is not None), lambda _: None)
        self._preflight = next((app.preflight for app in apps if app.preflight is not None), None)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._parts[name]
        except KeyError:
            raise AttributeError(f"no app has the part '{name}'") from None

    @property
    def parts(self) -> Sequence[Component]:
        """What is closed with the gateway."""
        return tuple(self._parts.values())

    async def open(self) -> None:
        for part in self.parts:
            await part.open()

    async def follow(self, snapshot: Snapshot) -> None:
        """The snapshot is about to be put in force."""
        for app in self._apps:
            if app.follow is not None:
                await app.follow(snapshot)

    def begin_stop(self) -> None:
        for app in self._apps:
            app.begin_stop()

    def troubles(self) -> dict[str, Any]:
        """Backend -> the last words of its engine, their cause and what mends it, of those that are out."""
        return {name: found for app in self._apps for name, found in app.troubles().items()}

    def recovered(self) -> dict[str, str]:
        """Backend that hangs -> its last restart by the gateway, in words."""
        return {name: text for app in self._apps for name, text in app.recovered().items()}

    def acceptance(self) -> dict[str, float]:
        """Backend that drafts -> share of its draft tokens that were accepted over the last minutes."""
        return {name: share for app in self._apps for name, share in app.acceptance().items()}

    def lost(self) -> dict[str, int]:
        """Kind of record -> how many the apps have dropped."""
        return {kind: count for app in self._apps for kind, count in app.lost().items()}

    def routers(self) -> list[APIRouter]:
        return [router for app in self._apps for router in app.routers()]

    def serves(self, endpoint: Endpoint) -> bool:
        """Is the endpoint answered as a chat is, or is there an app that translates it or handles it?"""
        plain = endpoint.becomes is None and endpoint not in PASSED_ON
        return plain or endpoint.name in self._translators or endpoint.name in self.handlers

    def translated(self, endpoint: Endpoint, exchange: Exchange) -> Exchange:
        """`exchange` for the request path: wrapped in a translator where the endpoint is none of OpenAI's chat API."""
        if self.tap is not None:
            exchange = self.tap(endpoint, exchange)
        wrap = self._translators.get(endpoint.name)
        return exchange if wrap is None else wrap(exchange)

    def batches_shown(self, may_see: Callable[[str], bool]) -> list[dict[str, Any]]:
        """The batches for `/status`, of the clients that the viewer may see."""
        return [row for app in self._apps for row in app.batches(may_see)]

    def preflight(self, snapshot: Snapshot, backend: str, profile: str, early: bool) -> PreflightFindings:
        """What may keep the backend from starting on its nodes. `early`: only what stopping others does not mend. Takes
        seconds."""
        ask = self._preflight
        return PreflightFindings() if ask is None else ask(snapshot, backend, profile, early)
