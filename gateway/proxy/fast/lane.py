"""Whether a request takes the fast lane, and its way to a backend. Whatever is not usual about it is left to the slow
lane: then nothing was done."""

from __future__ import annotations

import time

from gateway.admission.caller import Caller
from gateway.admission.memory import Memory, Share
from gateway.domain.health_state import State
from gateway.domain.request import is_limit, may_have_media, read_fields, value_of
from gateway.errors import GatewayError
from gateway.large_bodies import SEARCHED
from gateway.proxy.fast.decisions import Decision, Decisions, Member, tokens_needed
from gateway.proxy.fast.request import Asked, FastClient, FastRequest
from gateway.proxy.services import Services
from gateway.routing.balance import affinity_key, first_by_affinity, order


class FastLane:
    """The fast lane of one gateway."""

    def __init__(self, services: Services, memory: Memory) -> None:
        self._services = services
        self._memory = memory

    def serve(self, client: FastClient, caller: Caller, body: bytes) -> FastRequest | None:
        """Send this chat to a backend, if it is a usual one; else None."""
        services, memory = self._services, self._memory
        admission = services.admission
        if services.culprits or services.tracer is not None or admission.scheduler.sharing is not None:
            return None
        decisions: Decisions | None = caller.decisions
        if decisions is None:  # the first request with this head
            caller.decisions = Decisions()
            return None
        if len(body) > SEARCHED or (memory.limit is not None and memory.used + len(body) > memory.limit):
            return None
        try:
            fields = read_fields(body)
        except GatewayError:
            return None
        shape = decisions.shape(tuple(fields))
        decision = decisions.decision(services, caller, body, shape, fields)
        if decision is None:
            return None
        limits: dict[str, int] = {}
        most = decision.limit
        for name in shape.limits:
            limit = value_of(fields[name])
            if is_limit(limit):
                limits[name] = limit
                if limit > most:
                    most = limit
            elif limit is not None:
                return None
        prompt_bytes = 0
        for name in shape.prompt:
            prompt_bytes += len(memoryview(fields[name]))
        now = time.monotonic()
        needed = tokens_needed(prompt_bytes, most)
        for member in decision.members:
            state = member.state
            if state.health.state is not State.READY or state.cooldown_until > now or needed > member.window:
                return None
        if decision.searched and may_have_media(fields["messages"]):
            return None
        asked = Asked(fields, limits, prompt_bytes)
        member = self._member(decision, caller, asked, now)
        connection = member.client.take_idle()
        if connection is None:
            return None
        identity = decision.client
        most_inflight = identity.client.max_inflight if identity.client is not None else None
        held = admission.scheduler.try_acquire(member.state, 1, now, identity.name, most_inflight)
        share = Share(memory, caller)
        if held is None or not (_has_room(share, len(body)) and services.accounts.limits.admits(identity.client, now)):
            share.close()
            if held is not None:
                admission.scheduler.release(held, now, served=False)
            member.client.put_idle(connection)
            return None
        admission.seconds.observe(0.0)
        services.next_turn(decision.alias.name)
        request = FastRequest(services, client, caller, decision, member, asked, held, share)
        request.send(connection)
        return request

    def _member(self, decision: Decision, caller: Caller, asked: Asked, now: float) -> Member:
        """The member that comes first among these, which can all serve."""
        if len(decision.members) == 1:
            return decision.members[0]
        alias = decision.alias
        if alias.balance == "affinity":
            key = affinity_key(asked, caller.session, decision.client.name, alias.name)
            first = first_by_affinity(decision.states, key)
            if first is not None:
                return decision.by_state[first.name]
        first, *_ = order(
            decision.states,
            alias.balance,
            self._services.turn(alias.name),
            lambda: affinity_key(asked, caller.session, decision.client.name, alias.name),
            now,
        )
        return decision.by_state[first.name]


def _has_room(share: Share, size: int) -> bool:
    """Count the bytes of the body, if there is memory for them."""
    try:
        share.add(size)
    except GatewayError:
        return False
    return True
