"""What was decided for one request, kept for those that are alike: most requests of a client differ in nothing that a
decision depends on but their size.

`decide` asks the code that decides for every request, and notes what it has come to: which backends of the first step
may serve, what is changed in the body for each, how its answer is inspected. Where the outcome depends on more than the
values that a `Shape` compares (decided.py), nothing is kept, and each such request is decided anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from msgspec import Raw

from gateway.admission.access import Caller, Identity
from gateway.config.snapshot import Alias, Client, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.body import value_of
from gateway.domain.endpoints import CHAT
from gateway.domain.health_state import READY
from gateway.domain.request import NO_MEDIA, READ, InferenceRequest, Likeness, is_limit
from gateway.domain.tokens import MIN_ROOM, RATIO_LEAST, room_needed, surely_fits
from gateway.domain.tool_kinds import tool_kinds
from gateway.engines.base import authorized
from gateway.engines.forms import names_developer
from gateway.engines.openai.engine import OpenAIEngine
from gateway.engines.outgoing import JSON, NOT_THE_CLIENTS, UNSAID, outgoing_fields
from gateway.engines.registry import engine_of
from gateway.inspection.policy import InspectionPolicy
from gateway.inspection.reasoning import Thoughts
from gateway.proxy.decided import is_usual
from gateway.proxy.services import Services
from gateway.routing.balance import best
from gateway.routing.inspection_policy import policy_for
from gateway.routing.needs import NO_ADAPTATION, is_task, needs_of
from gateway.routing.placements import Session
from gateway.routing.plan import Candidate, adapted
from gateway.routing.why_not import why_not
from gateway.transport.h1 import H1Client, RequestHead

ID = "x-request-id"
VALUE_MOST = 200  # bytes of a value that is compared
SHAPES_MOST = 16  # sets of names, and values of each, that are kept for one head
NAMES_MOST = 1000  # characters of the names in a body
DIGITS_MOST = 18  # of a limit; a request with a larger one is decided anew
AGAIN = 5.0  # seconds until a request for which nothing was kept is looked at again
_COMPARED = READ | NOT_THE_CLIENTS | frozenset(UNSAID)


@dataclass(frozen=True, slots=True, eq=False)
class DecidedBackend:
    """One backend of the first step, as it was at `revision`. `window`: tokens, inf where it is not known. `head`: of
    the HTTP request; None where it differs from request to request. `changes`: fields that are set in the body,
    `dropped`: those that are left out. `policy`, `thoughts`: of the inspection of a request without tools."""

    candidate: Candidate
    revision: int
    window: float
    head: RequestHead | None
    changes: dict[str, Raw]
    dropped: tuple[str, ...]
    policy: InspectionPolicy | None
    thoughts: Thoughts | None

    def fields(self, request: InferenceRequest) -> dict[str, Raw]:
        """The body for this backend, as `outgoing_fields` makes it."""
        fields = {**request.fields, **self.changes}
        for name in self.dropped:
            del fields[name]
        return fields


@dataclass(slots=True, eq=False)
class Decision:
    """Holds while `snapshot` is in force, and for each backend while its revision is the same; `outdated`: one was not.
    `like`: what these requests have in common. `limit`: of the answer, by the alias' params (tokens). `searched`: the
    prompt must have no media. `unread`: a backend does not read the role `developer`. `tasks`: of the client, which ask
    for something else in a side call."""

    snapshot: Snapshot
    client: Identity
    alias: Alias
    shape: Shape
    like: Likeness
    backends: Mapping[str, DecidedBackend]
    limit: int
    searched: bool
    unread: bool
    tasks: bool
    outdated: bool = False

    def request(self, fields: dict[str, Raw]) -> InferenceRequest | None:
        """The request with this body, as `parse` reads it; None: it is none of those for which this was decided."""
        limits: dict[str, int] = {}
        for name in self.shape.limits:
            value = bytes(fields[name])
            if value.isdigit() and len(value) <= DIGITS_MOST and value != b"0":
                limits[name] = int(value)
            elif value != b"null":
                return None
        prompt_bytes = 0
        for name in self.shape.prompt:
            prompt_bytes += len(memoryview(fields[name]))
        request = self.like.request(fields, limits, prompt_bytes, self.client.name)
        if (self.searched and request.media is not NO_MEDIA) or (self.tasks and is_task(request)):
            return None
        if self.unread and names_developer(fields["messages"]):
            return None
        return request

    def usable(self, request: InferenceRequest, now: float) -> list[Candidate] | None:
        """The backends of the first step, where all of them can serve the request beyond doubt; else None."""
        need = self._need(request)
        for backend in self.backends.values():
            state = backend.candidate.state
            if state.revision != backend.revision:
                self.outdated = True  # decided anew for the next request
                return None
            if state.health.state is not READY or state.cooldown_until > now or need > backend.window:
                return None
        return [backend.candidate for backend in self.backends.values()]

    def first(self, usable: Sequence[Candidate], turn: int, session: Callable[[], Session], now: float) -> Candidate:
        states = [candidate.state for candidate in usable]
        return self.backends[best(states, self.alias.balance, turn, session, now).name].candidate

    def backend_for(self, candidate: Candidate, alias: Alias, request: InferenceRequest) -> DecidedBackend | None:
        """What was decided for an attempt on this backend; None where it does not hold."""
        backend = self.backends.get(candidate.state.name)
        if backend is None or backend.candidate != candidate or alias is not self.alias:
            return None
        if (
            backend.candidate.state.revision != backend.revision
            or request.refused
            or request.exact
            or request.corrected
        ):
            return None
        return backend if self._need(request) <= backend.window else None

    def _need(self, request: InferenceRequest) -> float:
        """Tokens of the window that the request surely does not exceed, as `surely_fits` counts them."""
        most = max(MIN_ROOM, self.limit, request.limit() or 0)
        return request.prompt_bytes / RATIO_LEAST * 1.1 + 1 + most


class _Undecided(NamedTuple):
    """Requests like this one are decided anew, until that time (monotonic seconds)."""

    until: float


class Shape:
    """Requests with the same names of fields. `limits`: the names of those that limit the answer; `prompt`: of those
    that hold the prompt."""

    __slots__ = ("_compared", "_tools", "limits", "prompt")

    def __init__(self, names: tuple[str, ...]) -> None:
        self._compared = tuple([name for name in names if name in _COMPARED])
        self.limits = tuple([name for name in CHAT.limits if name in names])
        self.prompt = tuple([name for name in CHAT.prompt if name in names])
        self._tools = "tools" in names

    def values(self, fields: Mapping[str, Raw]) -> tuple[bytes, ...] | None:
        """What is equal in requests that are alike; None: no request is like this one."""
        values = [bytes(fields[name]) for name in self._compared]
        if self._tools:
            if (kinds := tool_kinds(fields["tools"])) == "others":
                return None
            values.append(kinds.encode())
        for value in values:
            if len(value) > VALUE_MOST:
                return None
        return tuple(values)


class Decisions:
    """The decisions for the chats with one head: by the names of the fields of their bodies, in their order, and by the
    values that are compared."""

    __slots__ = ("_shapes",)

    def __init__(self) -> None:
        self._shapes: dict[tuple[str, ...], tuple[Shape, dict[tuple[bytes, ...], Decision | _Undecided]]] = {}

    def find(self, snapshot: Snapshot, fields: Mapping[str, Raw]) -> Decision | None:
        """What was decided for a body with these fields, and holds still."""
        if (known := self._shapes.get(tuple(fields))) is None:
            return None
        shape, kept = known
        values = shape.values(fields)
        found = kept.get(values) if values is not None else None
        return found if type(found) is Decision and found.snapshot is snapshot and not found.outdated else None

    def add(
        self,
        services: Services,
        caller: Caller,
        client: Identity,
        alias: Alias,
        request: InferenceRequest,
        fields: dict[str, Raw],
    ) -> Decision | None:
        """Decide for requests like this one, and keep it. `fields`: of the body as it came. None: nothing is kept."""
        names = tuple(fields)
        known = self._shapes.get(names)
        if known is None:
            if sum(map(len, names)) > NAMES_MOST:
                return None
            if len(self._shapes) >= SHAPES_MOST:
                self._shapes.clear()
            known = self._shapes[names] = Shape(names), {}
        shape, kept = known
        values, now = shape.values(fields), time.monotonic()
        before = kept.get(values) if values is not None else None
        if values is None or (type(before) is _Undecided and now < before.until):
            return None
        if len(kept) >= SHAPES_MOST:
            kept.clear()
        made = decide(services, caller, client, alias, request, fields, shape)
        kept[values] = made if made is not None else _Undecided(now + AGAIN)
        return made


def decide(
    services: Services,
    caller: Caller,
    client: Identity,
    alias: Alias,
    request: InferenceRequest,
    fields: dict[str, Raw],
    shape: Shape,
) -> Decision | None:
    """The decision for requests like this one; None: each of them is decided anew."""
    snapshot, limited = services.snapshot, client.client
    if not is_usual(snapshot, snapshot.server, alias, request) or not (limited is None or is_usual(limited)):
        return None
    if "messages" not in fields or request.fields != fields or _fills_in_by_value(alias, request):
        return None  # reading the body has changed something, or filling it in would differ
    tasks = limited is not None and limited.tasks is not None
    if tasks and is_task(request):
        return None
    if limited is not None and limited.tpm is not None:
        request.look_for_media()  # which the estimate of its tokens counts
    backends: dict[str, DecidedBackend] = {}
    limit = 0
    for name in alias.steps[0]:
        backend = _decided_backend(services, services.fleet.states[name], request, alias, caller, limited)
        if backend is None:
            return None
        backends[name] = backend
        limit = max(limit, _added_limit(backend, request))
    searched = request.media_known
    unread = not all(backend.candidate.state.traits.forms.developer for backend in backends.values())
    return Decision(snapshot, client, alias, shape, request.likeness(), backends, limit, searched, unread, tasks)


def _fills_in_by_value(alias: Alias, request: InferenceRequest) -> bool:
    """Does what the alias' params add depend on what the client sent, beyond the names of its fields?"""
    for name, value in alias.params.items():
        if isinstance(value, Mapping) and name in request.fields and name not in _COMPARED:
            return True
    limited = any(name in request.fields for name in CHAT.limits)
    return limited and not alias.params.keys().isdisjoint(CHAT.limits)


def _decided_backend(
    services: Services,
    state: BackendState,
    request: InferenceRequest,
    alias: Alias,
    caller: Caller,
    client: Client | None,
) -> DecidedBackend | None:
    """None: what is decided for this backend may change with time, or with what is in the prompt."""
    now = time.monotonic()
    if not is_usual(state, state.backend, state.traits, state.facts):
        return None
    forms = state.forms(now)
    if not isinstance(engine_of(state), OpenAIEngine) or forms.changes_messages or forms.session is not None:
        return None
    if request.tool_choice == "named" and state.traits.named_calls == "only_tool":
        return None
    needs, room = needs_of(request, alias, client), room_needed(request, None)
    if why_not(state, request, needs, room, now, local_only=False) is not None:
        return None
    candidate = adapted([state], 0, needs, now, None)[0]
    if candidate.doubtful or candidate.adapt is not NO_ADAPTATION:
        return None
    window = state.window(now)
    if window is not None and not surely_fits(request.prompt_bytes, max(MIN_ROOM, request.limit() or 0), window):
        return None
    sent, kinds = outgoing_fields(request, alias, state)
    changes = {name: raw for name, raw in sent.items() if request.fields.get(name) != raw}
    if kinds or any(name in request.fields and name not in _COMPARED for name in changes):
        return None
    dropped = tuple([name for name in request.fields if name not in sent])
    if request.limits and any(name in CHAT.limits for name in (*changes, *dropped)):
        return None  # a limit goes by another name
    head = _head(services, state, caller)
    policy, thoughts = policy_for(request, alias, candidate, now)
    most = inf if window is None else window
    return DecidedBackend(candidate, state.revision, most, head, changes, dropped, policy, thoughts)


def _head(services: Services, state: BackendState, caller: Caller) -> RequestHead | None:
    """The head of the HTTP requests to this backend; None where each has another one."""
    backend = state.backend
    if services.tracer is not None or not isinstance(state.client, H1Client):
        return None
    headers = authorized([JSON, (ID, ""), *caller.passed_on], backend)
    try:
        return state.client.frame(backend.api_path + CHAT.path, headers, ID)
    except ValueError:
        return None


def _added_limit(backend: DecidedBackend, request: InferenceRequest) -> int:
    """The limit of the answer that the alias' params add for this backend (tokens); 0 where they add none."""
    added = [value_of(backend.changes[name]) for name in CHAT.limits if name in backend.changes]
    return max([limit for limit in added if is_limit(limit)], default=0)
