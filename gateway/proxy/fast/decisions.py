"""What was decided for one request, for those that are alike: the usual ones of a client differ in nothing that a
decision depends on but their size.

`decide` asks the code that decides for every request, and notes what it has come to: which backends may serve, what is
changed in the body for each, the head of the request and of the answer. Where the outcome depends on more than the
values that `alike` compares, there is no decision, and each such request takes the slow lane.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from msgspec import Raw

from gateway.admission import access
from gateway.admission.access import Identity
from gateway.admission.caller import Caller
from gateway.config.snapshot import Alias, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.body import read_fields, value_of
from gateway.domain.request import CHAT, READ, InferenceRequest, Likeness, is_limit, offers_tools, parse
from gateway.domain.token_ratio import MIN_ROOM, room_needed, surely_fits
from gateway.engines.base import authorized
from gateway.engines.openai.engine import OpenAIEngine
from gateway.engines.outgoing import JSON, NOT_THE_CLIENTS, UNSAID, outgoing_fields
from gateway.engines.registry import ENGINES
from gateway.errors import GatewayError
from gateway.inspection.policy import InspectionPolicy
from gateway.inspection.reasoning import Thoughts
from gateway.inspection.rewrite import Renaming
from gateway.proxy.fast.decided import is_usual
from gateway.proxy.reply import STREAM_HEADERS, attempt_headers, base_headers
from gateway.proxy.services import Services
from gateway.routing.inspection_policy import policy_for
from gateway.routing.needs import NO_ADAPTATION, needs_of
from gateway.routing.plan import Candidate, adapted, why_not
from gateway.transport.h1 import H1Client

ID = "x-request-id"
VALUE_MOST = 200  # bytes of a value that is compared
SHAPES_MOST = 16  # sets of names, and values of each, that are kept for one head
NAMES_MOST = 1000  # characters of the names in a body
AGAIN = 5.0  # seconds until a request for which there was no decision is looked at again
_COMPARED = READ | NOT_THE_CLIENTS | frozenset(UNSAID)


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One backend of the first step. `revision`: of the backend when it was decided. `window`: tokens, inf = not
    known. `before`, `after`: the head of the request, around its id. `changes`: fields that are set in the body,
    `dropped` those that are left out. `lines`: the fields of the answer's head about this attempt."""

    state: BackendState
    revision: int
    candidate: Candidate
    window: float
    client: H1Client
    before: bytes
    after: bytes
    changes: dict[str, Raw]
    dropped: tuple[str, ...]
    lines: bytes
    policy: InspectionPolicy | None
    thoughts: Thoughts | None


@dataclass(slots=True, eq=False)
class Decision:
    """Holds while `snapshot` is in force, and for each member while its revision is the same; `outdated`: one was not.
    `fleet`: all backends.
    `like`: what these requests have in common. `limit`: of the answer, by the alias' params. `searched`: the prompt
    must have no media. `unread`: a member does not read the role `developer`."""

    snapshot: Snapshot
    fleet: Mapping[str, BackendState]
    client: Identity
    alias: Alias
    shape: Shape
    like: Likeness
    members: tuple[Member, ...]
    states: tuple[BackendState, ...]
    by_state: Mapping[str, Member]
    limit: int
    searched: bool
    unread: bool
    stream_lines: bytes
    renaming: Renaming
    outdated: bool = False


class Undecided(NamedTuple):
    """The slow lane serves requests like this one, until that time (monotonic seconds)."""

    until: float


class Shape:
    """Requests with the same names of fields. `compared`: the names whose values decide; `limits`: those of the
    limits."""

    __slots__ = ("_compared", "_tools", "limits", "prompt")

    def __init__(self, names: tuple[str, ...]) -> None:
        self._compared = tuple([name for name in names if name in _COMPARED])
        self.limits = tuple([name for name in CHAT.limits if name in names])
        self.prompt = tuple([name for name in CHAT.prompt if name in names])
        self._tools = "tools" in names

    def values(self, fields: Mapping[str, Raw]) -> tuple[bytes, ...] | None:
        """What is equal in requests that are alike; None = no request is like this one."""
        values = [bytes(fields[name]) for name in self._compared]
        if self._tools:
            values.append(b"tools" if offers_tools(fields["tools"]) else b"")
        for value in values:
            if len(value) > VALUE_MOST:
                return None
        return tuple(values)


class Decisions:
    """The decisions for the requests with one head. `shapes`: by the names of the fields, in their order, with the
    decisions by the values that decide."""

    __slots__ = ("shapes",)

    def __init__(self) -> None:
        self.shapes: dict[tuple[str, ...], tuple[Shape, dict[tuple[bytes, ...], Decision | Undecided]]] = {}

    def decide(self, services: Services, caller: Caller, body: bytes, fields: Mapping[str, Raw]) -> Decision | None:
        """The decision for requests like this one, made now and kept; None = the slow lane decides."""
        names = tuple(fields)
        known = self.shapes.get(names)
        if known is None:
            if sum(map(len, names)) > NAMES_MOST:
                return None
            if len(self.shapes) >= SHAPES_MOST:
                self.shapes.clear()
            known = self.shapes[names] = Shape(names), {}
        shape, decisions = known
        values, now = shape.values(fields), time.monotonic()
        before = decisions.get(values) if values is not None else None
        if values is None or (type(before) is Undecided and now < before.until):
            return None
        if len(decisions) >= SHAPES_MOST:
            decisions.clear()
        made = decide(services, caller, body, shape)
        decisions[values] = made if made is not None else Undecided(now + AGAIN)
        return made


def decide(services: Services, caller: Caller, body: bytes, shape: Shape) -> Decision | None:
    """The decision for requests like this one; None = there is none."""
    snapshot = services.snapshot
    try:
        client = caller.identify(snapshot)
        caller.check_json()
        request = parse(CHAT, body)
        alias = access.alias_for(snapshot, client, request)
    except GatewayError:
        return None
    if client.client is not None and client.client.tpm is not None:
        request.look_for_media()  # which the estimate of its tokens counts
    if not is_usual(snapshot, snapshot.server, alias, request) or not (
        client.client is None or is_usual(client.client)
    ):
        return None
    if not (_is_usual_caller(caller) and _is_usual(request, body)) or _fills_in_by_value(alias, request):
        return None
    members: list[Member] = []
    for name in alias.steps[0]:
        member = _member(services.fleet.states[name], request, alias, caller, client)
        if member is None:
            return None
        members.append(member)
    limits = [_given_limit(member, request) for member in members]
    searched = request.media_known
    like = request.likeness()
    by_state = {member.state.name: member for member in members}
    states = tuple([member.state for member in members])
    lines = _lines(STREAM_HEADERS)
    renaming = Renaming(request.model)
    unread = not all(state.traits.forms.developer for state in states)
    found = tuple(members), states, by_state, max(limits), searched, unread, lines, renaming
    return Decision(snapshot, services.fleet.states, client, alias, shape, like, *found)


def _is_usual_caller(caller: Caller) -> bool:
    """An id that the client chose must not be sent twice at a time."""
    return b"content-encoding" not in caller.headers and ID.encode() not in caller.headers


def _fills_in_by_value(alias: Alias, request: InferenceRequest) -> bool:
    """Does what the alias' params add depend on what the client sent, beyond the names of its fields?"""
    for name, value in alias.params.items():
        if isinstance(value, Mapping) and name in request.fields and name not in _COMPARED:
            return True
    limited = any(name in request.fields for name in CHAT.limits)
    return limited and not alias.params.keys().isdisjoint(CHAT.limits)


def _is_usual(request: InferenceRequest, body: bytes) -> bool:
    return "messages" in request.fields and request.fields == read_fields(body)  # reading it has changed nothing


def _member(
    state: BackendState, request: InferenceRequest, alias: Alias, caller: Caller, client: Identity
) -> Member | None:
    """None = what is decided for this backend may change with time, or with what is in the prompt."""
    backend, now = state.backend, time.monotonic()
    if not is_usual(state, backend, state.traits, state.facts):
        return None
    if not isinstance(state.client, H1Client) or not isinstance(ENGINES[backend.engine], OpenAIEngine):
        return None
    if state.reported.loaded is False or CHAT.name not in state.traits.endpoints:
        return None
    needs, room = needs_of(request, alias, client.client), room_needed(request, None)
    if why_not(state, request, needs, room, now, local_only=False) is not None:
        return None
    candidate = adapted([state], 0, needs, now, None)[0]
    if candidate.doubtful or candidate.adapt is not NO_ADAPTATION:
        return None
    sent, kinds = outgoing_fields(request, alias, state)
    changes = {name: raw for name, raw in sent.items() if request.fields.get(name) != raw}
    if kinds or any(name in request.fields and name not in _COMPARED for name in changes):
        return None
    dropped = tuple([name for name in request.fields if name not in sent])
    if request.limits and any(name in CHAT.limits for name in (*changes, *dropped)):
        return None  # a limit goes by another name
    headers = [JSON, (ID, ""), *caller.passed_on]
    try:
        before, after = state.client.frame(backend.api_path + CHAT.path, authorized(headers, backend), ID)
    except ValueError:
        return None
    told = base_headers("", alias.name)[1:] + attempt_headers(state.name, 1, 0, None, [])
    window = state.window(now)
    limit = float(inf if window is None else window)
    if window is not None and not surely_fits(request.prompt_bytes, max(MIN_ROOM, request.limit() or 0), window):
        return None
    policy, thoughts = policy_for(request, alias, candidate, now)
    parts = candidate, limit, state.client, before, after, changes, dropped, _lines(told), policy, thoughts
    return Member(state, state.revision, *parts)


def _given_limit(member: Member, request: InferenceRequest) -> int:
    """The limit of the answer that the alias' params add for this backend (tokens); 0 = none."""
    added = [value_of(member.changes[name]) for name in CHAT.limits if name in member.changes]
    return max([limit for limit in added if is_limit(limit)], default=0)


def _lines(headers: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%s: %s\r\n" % header for header in headers])
