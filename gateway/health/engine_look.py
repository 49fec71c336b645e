"""Looks at the engines behind servers: whether they make progress, how fast they are, and how many requests of others
are under way there. A server may answer its health check while its engine hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from urllib.parse import quote

from gateway.domain.backend import BackendState
from gateway.domain.engine_traits import Probe
from gateway.domain.health_state import SERVING
from gateway.domain.progress import Sample, Work
from gateway.engines import llamacpp
from gateway.engines.vllm import read_counters
from gateway.health.probe_client import ProbeClient, ProbeFailure, decoded
from gateway.transport.prometheus_text import in_turns

MOVING = 3.0  # seconds between two looks at an engine that has requests of ours
AGAIN = 0.5  # seconds until the next look at an engine that has not answered one
SEEN_LATELY = 10.0  # seconds after the last answered look until requests of others do not count any more


def looks_at_engine(probe: Probe) -> bool:
    """Does this kind of server report the work of its engine?"""
    return probe.metrics is not None or probe.slots is not None


def pause(state: BackendState) -> float:
    """Seconds until the next look."""
    every = state.backend.health.every or MOVING
    if state.progress.doubted or (state.is_full and state.slots_to_find):
        return min(every, AGAIN)
    return min(every, MOVING) if state.engine_inflight else every


class EngineLooks:
    """`work_of`: the requests of this gateway that are under way at a backend."""

    def __init__(self, client: ProbeClient, work_of: Callable[[BackendState], Work]) -> None:
        self._client = client
        self._work_of = work_of
        self._under_way: dict[int, asyncio.Event] = {}  # id of a backend -> the look there has ended

    async def look(self, state: BackendState) -> None:
        """One look at a backend with such a server (`looks_at_engine`). One at a time: where one is under way, its end
        is waited for. Raises nothing of the network's."""
        if (ended := self._under_way.get(id(state))) is not None:
            await ended.wait()
            return
        ended = self._under_way[id(state)] = asyncio.Event()
        try:
            await self._look(state)
        finally:
            del self._under_way[id(state)]
            ended.set()

    async def _look(self, state: BackendState) -> None:
        state.progress.looked_at = time.monotonic()
        probe = state.traits.probe
        sample = None
        if probe is not None and probe.slots is not None:
            sample = await self._look_at_slots(state, probe.slots, probe.metrics)
        elif probe is not None and probe.metrics is not None:
            response = await self._client.get(state.backend, probe.metrics)
            if not isinstance(response, ProbeFailure) and response.status == 200:
                sample = await in_turns(read_counters(response.body, time.monotonic()))
        now = time.monotonic()
        if sample is not None:
            before = state.progress.last
            if before is not None and state.reported.started is None and sample.begins_anew(before):
                state.start_over()
            state.progress.add(sample)
            state.foreign = state.progress.foreign(state.engine_inflight + state.shared.elsewhere_lately, now)
            state.saw_work(before, sample)
        elif state.foreign and state.progress.age(now) > SEEN_LATELY:
            state.foreign = 0
        for other in state.siblings:
            other.foreign = state.foreign
        if sample is not None or state.progress.doubted:
            self._judge(state, now)

    async def _look_at_slots(self, state: BackendState, path: str, metrics: str | None) -> Sample | None:
        """The slots, or where the server does not show them its counters. The engine itself answers both."""
        asked_at = time.monotonic()
        # A router asks the server of that model, and must not load it for a look.
        of_model = f"?model={quote(state.model, safe='')}&autoload=false" if state.model is not None else ""
        for one in (path, metrics):
            response = await self._client.get(state.backend, one + of_model) if one is not None else None
            if isinstance(response, ProbeFailure):
                if not (response.own or response.refused):
                    state.progress.unanswered(asked_at)
                return None
            if response is None or response.status != 200:
                continue
            if one == metrics:
                slots, window = state.reported.slots, state.reported.context
                if slots is not None:
                    state.saw_slots(slots, llamacpp.shared_pool(slots, window, 0, state.reported.pool))
                return await in_turns(llamacpp.read_counters(response.body, time.monotonic()))
            if (seen := llamacpp.read_slots(decoded(response, None), time.monotonic())) is not None:
                known = state.reported.pool if state.reported.slots == seen.slots else None
                window = seen.window or state.reported.context
                state.saw_slots(seen.slots, llamacpp.shared_pool(seen.slots, window, seen.used, known))
                return seen.sample
        return None

    def _judge(self, state: BackendState, now: float) -> None:
        """Is the engine at a standstill? Then the requests on it will not end."""
        progress, work = state.progress, self._work_of(state)
        if progress.is_deaf(work, now):
            reason = f"its engine has answered no look for {progress.deaf_for(work, now):.0f} s"
        elif progress.stalled(work, now):
            silence = progress.silence(work, now)
            reason = f"its engine has stood still for {silence:.0f} s with {work.waiting} requests of ours"
        else:
            return
        if state.health.state in SERVING:
            state.evidence.stalled(reason)
        else:
            state.report("stalled")  # ends requests that arrived since, or that could not be ended before
