"""Whether a request takes the fast lane, and its way to a backend. Whatever is not usual about it is left to the slow
lane: then nothing was done."""

from __future__ import annotations

import time

from msgspec import Raw

from gateway.accounting.limits import text_estimate
from gateway.admission.caller import Caller
from gateway.admission.memory import TINY, Memory, Share
from gateway.config.snapshot import Client
from gateway.domain.body import read_fields
from gateway.domain.health_state import READY
from gateway.domain.request import may_have_media
from gateway.domain.token_ratio import MIN_ROOM, RATIO_LEAST
from gateway.engines.forms import names_developer
from gateway.errors import GatewayError
from gateway.large_bodies import SEARCHED
from gateway.proxy.fast.client import FastClient
from gateway.proxy.fast.decisions import Decision, Decisions, Member
from gateway.proxy.fast.request import FastRequest
from gateway.proxy.fast.stream import FastStream
from gateway.proxy.services import Services
from gateway.routing.balance import affinity_key, first_by_affinity, order

DIGITS_MOST = 18  # of a limit; a larger one is not usual


class FastLane:
    """The fast lane of one gateway."""

    def __init__(self, services: Services, memory: Memory) -> None:
        self._services = services
        self._memory = memory

    def serve(self, client: FastClient, caller: Caller, body: bytes) -> FastRequest | None:
        """Send this chat to a backend, if it is a usual one; else None."""
        services, memory, size = self._services, self._memory, len(body)
        scheduler = services.admission.scheduler
        if services.decides_ahead == "never" or services.culprits.sizes:
            return None
        if size > SEARCHED or (memory.limit is not None and memory.used + size > memory.limit):
            return None
        try:
            fields = read_fields(body)
            decision = self._decision(caller, body, fields)
            request = self._request(client, caller, decision, fields) if decision is not None else None
        except GatewayError:
            return None
        except Exception:  # a defect here must not cost the client its connection
            services.metrics.failures.note("fast lane", "whether a request takes it")
            return None
        if decision is None or request is None:
            return None
        member, identity = request.member, decision.client
        most = identity.client.max_inflight if identity.client is not None else None
        if not scheduler.acquire_one(member.state, request.since, identity.name, most):
            return None
        if not (self._hold(request, caller, size) and self._charge(request, identity.client)):
            request.release_memory()
            scheduler.release_one(member.state, identity.name, request.since, request.since, served=False)
            return None
        services.admission.seconds.observe(0.0)
        services.next_turn(decision.alias.name)
        request.send(member.client.take_idle() or member.client.open())
        return request

    def _decision(self, caller: Caller, body: bytes, fields: dict[str, Raw]) -> Decision | None:
        decisions: Decisions | None = caller.decisions
        if decisions is None:  # the first request with this head
            decisions = caller.decisions = Decisions()
            if self._services.decides_ahead != "first":
                return None
        decision: object = None
        if (known := decisions.shapes.get(tuple(fields))) is not None:
            shape, made = known
            values = shape.values(fields)
            if values is None:
                return None
            decision = made.get(values)
        if type(decision) is Decision and decision.snapshot is self._services.snapshot and not decision.outdated:
            return decision
        return decisions.decide(self._services, caller, body, fields)

    def _request(
        self, client: FastClient, caller: Caller, decision: Decision, fields: dict[str, Raw]
    ) -> FastRequest | None:
        """The request, and the member of the first step that gets it. None = one of them cannot serve it beyond doubt:
        all have to be ready, and to have surely room for the prompt and the answer."""
        shape = decision.shape
        limits: dict[str, int] = {}
        most = decision.limit if decision.limit > MIN_ROOM else MIN_ROOM
        for name in shape.limits:
            value = bytes(fields[name])
            if value.isdigit() and len(value) <= DIGITS_MOST and value != b"0":
                limits[name] = limit = int(value)
                if limit > most:
                    most = limit
            elif value != b"null":
                return None
        prompt_bytes = 0
        for name in shape.prompt:
            prompt_bytes += len(memoryview(fields[name]))
        now = time.monotonic()
        window = prompt_bytes / RATIO_LEAST * 1.1 + 1 + most  # as `surely_fits`
        for member in decision.members:
            state = member.state
            if state.revision != member.revision:
                decision.outdated = True  # decided anew by the next request
                return None
            if state.health.state is not READY or window > member.window:  # a pause is found with the slot
                return None
        messages = fields["messages"]
        if (decision.searched and may_have_media(messages)) or (decision.unread and names_developer(messages)):
            return None
        kind = FastStream if decision.like.stream else FastRequest
        request = kind(self._services, self._memory, client, caller, decision, fields, now)
        request.limits, request.prompt_bytes = limits, prompt_bytes
        request.member = member if len(decision.members) == 1 else self._member(request, decision, caller, now)
        return request

    def _member(self, request: FastRequest, decision: Decision, caller: Caller, now: float) -> Member:
        """The first of several members that can serve."""
        client, alias = decision.client.name, decision.alias
        if alias.balance == "affinity":
            key = affinity_key(request, caller.session, client, alias.name)
            first = first_by_affinity(decision.states, key)
            if first is None:
                first = order(decision.states, alias.balance, 0, lambda: key, now)[0]
        else:
            first = order(decision.states, alias.balance, self._services.turn(alias.name), bytes, now)[0]
        return decision.by_state[first.name]

    def _charge(self, request: FastRequest, client: Client | None) -> bool:
        """Count it against the client's limits. False = they refuse it."""
        limits = self._services.accounts.limits
        if client is None or client.tpm is None:
            return limits.admits(client, request.since)
        asked = max(request.limits.values()) if request.limits else None
        request.charge = limits.charge(client, text_estimate(request.prompt_bytes, asked), request.since)
        return request.charge is not None

    def _hold(self, request: FastRequest, caller: Caller, size: int) -> bool:
        """Count the memory of the body. False = there is no room for it."""
        if size <= TINY:
            self._memory.used += size
            request.tiny = size
            return True
        request.share = Share(self._memory, caller)
        try:
            request.share.add(size)
        except GatewayError:
            return False
        return True
