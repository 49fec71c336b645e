"""The plan of one request, with the fleet as it is when the plan is made, and the reply that it is streamed into."""

from __future__ import annotations

import time
from collections.abc import Mapping

from gateway.config.snapshot import Alias
from gateway.domain.backend import BackendState
from gateway.engines.ollama.installed_models import window_of
from gateway.engines.ollama.loading import begin_load
from gateway.proxy.reply import LOADING_TOLD, StreamReply, base_headers
from gateway.proxy.stages import ReceivedRequest, RequestContext
from gateway.routing.balance import affinity_key
from gateway.routing.first_choice import first_choice
from gateway.routing.loads import loads_first
from gateway.routing.needs import Resort
from gateway.routing.plan import Candidate, Plan, make_plan


class Planner:
    """Makes the plans of one request. `states`: the backends when it came; `turn`: for round robin."""

    __slots__ = ("_context", "_received", "_states", "_turn")

    def __init__(
        self, context: RequestContext, received: ReceivedRequest, states: Mapping[str, BackendState], turn: int
    ) -> None:
        self._context = context
        self._received = received
        self._states = states
        self._turn = turn

    def first_choice(self) -> Candidate | None:
        """The backend that comes first in the plan, where that needs no plan; None = it has to be made."""
        context, received, services = self._context, self._received, self._context.services
        client, request, alias = received.client, received.request, received.alias
        if services.admission.scheduler.sharing is not None or context.snapshot is not services.snapshot:
            return None
        if services.accounts.over_budget(context.snapshot, client.client) is not None:
            return None
        caller = context.exchange.caller
        return first_choice(
            alias,
            self._states,
            request,
            time.monotonic(),
            local_only=context.record.privacy.local_only,
            turn=self._turn,
            key=lambda: affinity_key(request, caller.session, client.name, alias.name),
            client=client.client,
        )

    def __call__(self, resort: Resort | None, outcomes: Mapping[str, str] | None) -> Plan:
        """A plan of the fleet as it is now. `outcomes`: backend name -> how its attempt ended."""
        client, request, alias = self._received.client, self._received.request, self._received.alias
        context, states = self._context, self._states
        caller, services = context.exchange.caller, context.services
        starts = services.admission.starts
        if context.snapshot is not services.snapshot:
            alias, states = self._alias_now(alias)
        plan = make_plan(
            alias,
            states,
            request,
            time.monotonic(),
            local_only=context.record.privacy.local_only,
            turn=self._turn,
            key=lambda: affinity_key(request, caller.session, client.name, alias.name),
            client=client.client,
            resort=resort,
            over_budget=services.accounts.over_budget(context.snapshot, client.client),
            outcomes=outcomes,
            refuses_start=None if starts is None else starts.decision,
        )
        for state in plan.loads:
            begin_load(state, window_of(state), kept=True)
        return plan

    def _alias_now(self, alias: Alias) -> tuple[Alias, Mapping[str, BackendState]]:
        """routes.yaml was edited since the request arrived. The request keeps its alias, with the backends that have
        those names now; backends that were removed get no more attempts. If all were removed, the alias as it is now
        counts; but not for one choice of an `ask_all`, which is its backend's or nobody's."""
        services = self._context.services
        fleet = services.fleet.states
        whole = self._context.snapshot.aliases.get(alias.name, alias)
        is_choice = bool(whole.ask_all) and not alias.ask_all
        if not is_choice and fleet.keys().isdisjoint(name for step in alias.steps for name in step):
            alias = services.snapshot.aliases.get(alias.name, alias)
        return alias, {**self._states, **fleet}


def stream_reply(context: RequestContext, received: ReceivedRequest, first: BackendState | None) -> StreamReply | None:
    """The reply to a client that streams, else None. Its first heartbeat is due after the `hold` of the backend that is
    asked `first`."""
    request, record = received.request, context.record
    if not request.stream:
        return None
    if first is not None:
        hold = first.backend.timeouts.hold
        context.timer.beat_at = record.began + (min(hold, LOADING_TOLD) if loads_first(first) else hold)
    base = base_headers(record.id, received.alias.name)
    return StreamReply(context.exchange, context.timer, request.endpoint, request.model, record.id, base)
