"""The prober: a health check of every backend every `health.every` (does it answer, which models does it serve, with
which windows), looks at the counters of its engine, and at the exporters of the nodes. After each health check a canary
is started where one is due."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Any

from gateway.config.snapshot import Backend, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.engine_traits import TRAITS, Probe
from gateway.domain.events import Event
from gateway.domain.fleet import Fleet
from gateway.domain.health_state import SERVING, WELL, State
from gateway.domain.progress import IDLE, Work
from gateway.domain.reason import quoting
from gateway.engines.registry import ENGINES
from gateway.engines.vllm.flags import read_flags
from gateway.engines.vllm.metrics import read_counters, read_start_time
from gateway.health.canary_schedule import CanarySchedule
from gateway.health.nodes import Machine, NodeHealth, read_machine
from gateway.health.probe_client import ALIVE_MOST, NoAnswer, ProbeClient, decoded
from gateway.health.suspect_probes import SuspectProbes
from gateway.health.warm_standby import OllamaLoader, WarmStandby
from gateway.printable import visible
from gateway.shortage import Kind
from gateway.supervision import Failures
from gateway.transport.prometheus_text import in_turns

log = logging.getLogger("gateway.health")

FIRST_LOOK = 0.3  # seconds that the start waits for the first probes
NAME_SHOWN = 100  # characters of a model's name in a reason
VERSION_MOST = 100  # characters of a version
LATELY = 10.0  # seconds since a stream there said something, or its engine moved: whatever else seems so
MOVING = 3.0  # seconds between two looks at an engine that has work of ours
EXPORTER_EVERY = 5.0  # seconds between two looks at a node's exporter
REREAD = 12  # every so many good probes the model list and the version are read again

Jobs = list[Callable[[], Awaitable[None]]]


class Prober:
    """One or two tasks per probed backend, one per exporter, and the warm standby. `work_of`: what the gateway has
    under way at a backend. `emit` gets the events of canaries; `on_short` is called when the gateway itself lacks
    something."""

    def __init__(
        self,
        fleet: Fleet,
        work_of: Callable[[BackendState], Work] = lambda _: IDLE,
        emit: Callable[[Event], None] = lambda _: None,
        failures: Failures | None = None,
        on_short: Callable[[Kind], object] = lambda _: None,
    ) -> None:
        self._fleet = fleet
        self._failures = failures or Failures()
        self._work_of = work_of
        self._client = ProbeClient(on_short)
        self._tasks: dict[object, list[asyncio.Task[None]]] = {}
        self._hurried: dict[str, asyncio.Task[None]] = {}
        self._nodes = NodeHealth()
        self.machines: dict[str, Machine] = {}  # node -> what its exporter reported last
        self._shared: frozenset[str] = frozenset()  # nodes that an engine needs beside others
        loader = OllamaLoader(self._client)
        self.canaries = CanarySchedule(
            loader.has_loaded, emit, lambda s: self._nodes.excuse(s.name, s.backend.nodes), self._failures
        )
        self.suspicion = SuspectProbes(self._failures)
        self.standby = WarmStandby(fleet, loader, self.machines, self._failures)

    def open(self) -> None:
        """Ready for `check`; begins nothing."""
        self._client.open()

    async def start(self, snapshot: Snapshot) -> None:
        """Begin probing, and give the backends a moment to be known before the first request is."""
        self.open()
        first = [asyncio.create_task(looked.wait()) for looked in self.follow_fleet(snapshot)]
        if first:
            _, late = await asyncio.wait(first, timeout=FIRST_LOOK)
            for waiter in late:
                waiter.cancel()

    def follow_fleet(self, snapshot: Snapshot) -> list[asyncio.Event]:
        """Probe the backends that the fleet has now, and no others; call it after each `Fleet.apply`. Each event is set
        when a backend that is new was checked once."""
        self._shared = frozenset(n for b in snapshot.backends.values() if len(b.nodes) > 1 for n in b.nodes)
        self.standby.follow(snapshot)
        looks: list[asyncio.Event] = []
        wanted: dict[object, Callable[[], Jobs]] = {"standby": lambda: [self.standby.run]}
        for state in self._fleet.states.values():  # one that is described otherwise now is looked at anew, at once
            wanted[state.backend] = partial(self._jobs, state, looks)
        exporters = {name: node.exporter for name, node in snapshot.nodes.items() if node.exporter is not None}
        for name, exporter in exporters.items():
            wanted[name, exporter] = partial(self._exporter_jobs, name, exporter)
        self._forget(snapshot, exporters)
        for key in self._tasks.keys() - wanted.keys():
            for task in self._tasks.pop(key):
                task.cancel()
        for key in wanted.keys() - self._tasks.keys():
            self._tasks[key] = [self._failures.task("probe", job) for job in wanted[key]()]
        return looks

    def _forget(self, snapshot: Snapshot, exporters: Collection[str]) -> None:
        """Drop what is known of nodes and backends that are not in `snapshot`. `exporters`: the nodes that have one."""
        for name in self.machines.keys() - exporters:
            del self.machines[name]
        backends = snapshot.backends.values()
        alone = {b.name: b.nodes[0] for b in backends if len(b.nodes) == 1 and b.run == "always"}
        self._nodes.keep_only(alone, exporters)
        self.canaries.keep_only({backend.identity for backend in backends})

    async def meet(self, states: Iterable[BackendState]) -> None:
        """Check backends that are about to be used, so that requests find them known. Given up after `FIRST_LOOK`."""
        looks = [asyncio.create_task(self._first_look(state)) for state in states if probe_of(state.backend)]
        if not looks:
            return
        try:
            await asyncio.wait(looks, timeout=FIRST_LOOK)
        finally:
            for look in looks:
                look.cancel()

    async def _first_look(self, state: BackendState) -> None:
        try:
            await self.check(state, read_models=True)
        except Exception:
            self._failures.note("probe", f"the probe of {state.name}")

    def _exporter_jobs(self, node: str, url: str) -> Jobs:
        return [partial(self._watch_exporter, node, url)]

    def _jobs(self, state: BackendState, looks: list[asyncio.Event]) -> Jobs:
        probe = probe_of(state.backend)
        if probe is None:
            return [partial(self._watch_canaries, state)] if state.backend.health.canary is not None else []
        looked = asyncio.Event()
        looks.append(looked)
        jobs: Jobs = [partial(self._watch, state, looked)]
        return [*jobs, partial(self._watch_progress, state)] if probe.metrics is not None else jobs

    async def close(self) -> None:
        tasks = [*(task for group in self._tasks.values() for task in group), *self._hurried.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.canaries.close()
        await self._client.close()

    # -- the loops -----------------------------------------------------------------------------------------------

    async def _watch(self, state: BackendState, looked: asyncio.Event) -> None:
        checks = 0
        while True:
            every = state.backend.health.every
            if every is None:
                return
            try:
                await self.check(state, read_models=checks % REREAD == 0)
                state.evidence.load(full=state.is_full)
                self.canaries.run_if_due(state)
            except Exception:
                self._failures.note("probe", f"the probe of {state.name}")
            looked.set()
            checks = checks + 1 if state.health.state in WELL else 0
            await asyncio.sleep(every * random.uniform(0.9, 1.1))

    async def _watch_canaries(self, state: BackendState) -> None:
        """For a cloud with `health.canary` but without `health.every`."""
        while (every := state.backend.health.canary) is not None:
            self.canaries.run_if_due(state)
            await asyncio.sleep(every)

    async def _watch_progress(self, state: BackendState) -> None:
        while True:
            every = state.backend.health.every or MOVING
            await asyncio.sleep(min(every, MOVING) if state.inflight else every)
            try:
                await self.look_at_engine(state)
            except Exception:
                self._failures.note("probe", f"the look at {state.name}'s engine")

    async def _watch_exporter(self, node: str, url: str) -> None:
        while True:
            page = await self._client.page(url)
            if isinstance(page, NoAnswer) and page.own:
                pass  # nothing was found out
            elif isinstance(page, NoAnswer):
                self.machines[node] = self.machines.get(node, Machine(0.0, there=False)).gone(time.time())
            else:
                self.machines[node] = await in_turns(read_machine(page, time.time()))
            if not isinstance(page, NoAnswer) or (page.refused and not page.own):
                self._nodes.record_exporter(node, there=not isinstance(page, NoAnswer))
            await asyncio.sleep(EXPORTER_EVERY)

    # -- one look --------------------------------------------------------------------------------------------------

    async def look_at_engine(self, state: BackendState) -> None:
        """Read the counters of its engine: whether it moves, how fast it is, and what others have under way there. Only
        for engines that have such a page (`Probe.metrics`)."""
        probe = TRAITS[state.backend.engine].probe
        assert probe is not None
        assert probe.metrics is not None
        answer = await self._client.get(state.backend, probe.metrics)
        now = time.monotonic()
        if isinstance(answer, NoAnswer) or answer.status_code != 200:
            return
        sample = await in_turns(read_counters(answer.content, now))
        if sample is None:
            return
        state.progress.add(sample)
        state.foreign = state.progress.foreign(state.inflight + state.shared.elsewhere_lately, now)
        work = self._work_of(state)
        if not state.progress.stalled(work, now):
            return
        if state.health.state in SERVING:
            silence = state.progress.silence(work, now)
            state.evidence.stalled(
                f"its engine has stood still for {silence:.0f} s with {work.waiting} requests of ours"
            )
        else:
            state.report_stalled()  # one that came in meanwhile, or could not be ended before

    def hurry(self, state: BackendState, *, read_models: bool = False) -> None:
        """Check the backend now: something seems to have happened there. `read_models`: its list of models may have
        changed."""
        if probe_of(state.backend) is not None and state.name not in self._hurried:
            task = asyncio.create_task(self._look_now(state, read_models), name=f"look at {state.name}")
            self._hurried[state.name] = task
            task.add_done_callback(lambda _: self._hurried.pop(state.name, None))

    async def _look_now(self, state: BackendState, read_models: bool) -> None:
        try:
            await self.check(state, read_models=read_models)
        except Exception:
            self._failures.note("probe", f"the probe of {state.name}")

    async def check(self, state: BackendState, *, read_models: bool) -> None:
        """One health check. On the way back to ready, and with `read_models`, also what the backend serves."""
        probe = probe_of(state.backend)
        assert probe is not None
        answer = await self._client.get(state.backend, probe.liveness or state.backend.health.path, ALIVE_MOST)
        if isinstance(answer, NoAnswer) and answer.own:
            return  # nothing was found out
        self._record_for_node(state, there=not (isinstance(answer, NoAnswer) and answer.refused))
        if isinstance(answer, NoAnswer):
            moved = max(state.last_event, state.progress.moved_at)
            if answer.refused or time.monotonic() - moved > LATELY:  # busy is not dead
                state.evidence.dead(answer.reason, refused=answer.refused)
            return
        if answer.status_code in (401, 403):
            state.evidence.misconfigured(f"refuses our credential ({answer.status_code}); check its api_key")
            return
        if answer.status_code >= 500 or (answer.status_code != 200 and probe.models is not None):
            state.evidence.dead(f"{answer.request.url.path} answers {answer.status_code}", answered=True)
            return
        if (read_models or state.health.state not in WELL) and not await self._read_description(state, probe):
            return
        if (node := self._down_node(state)) is not None:
            state.evidence.dead(f"its node {node} is down")
            return
        state.evidence.alive()

    def _record_for_node(self, state: BackendState, *, there: bool) -> None:
        """A backend that runs on one node alone is evidence of that node; one that is stopped on purpose is none."""
        nodes = state.backend.nodes
        counts = state.backend.run == "always" and state.health.state is not State.DRAINING
        if counts and len(nodes) == 1 and nodes[0] in self._shared:
            self._nodes.record_backend(nodes[0], state.name, there=there)

    def _down_node(self, state: BackendState) -> str | None:
        """The node that takes this backend down with it; None = there is none, or the backend works, or has shown since
        that it does. Once it is down, a canary decides whether it is back."""
        nodes = state.backend.nodes
        if len(nodes) < 2:
            return None
        if time.monotonic() - state.last_event < LATELY:
            self._nodes.excuse(state.name, nodes)
        if state.health.canaried and state.health.state not in SERVING:
            return None
        return self._nodes.down_node_of(state.name, nodes)

    async def _read_description(self, state: BackendState, probe: Probe) -> bool:
        """Read the model names, the window, the version, when it was started and with which flags. False = it turned
        out misconfigured, or did not answer."""
        backend = state.backend
        if probe.version is not None:
            answer = await self._client.get(backend, probe.version)
            if not isinstance(answer, NoAnswer) and answer.status_code == 200:
                version = reported_version(decoded(answer, {}))
                if version is not None:
                    state.saw_version(version)
        if probe.metrics is not None:
            answer = await self._client.get(backend, probe.metrics)
            if not isinstance(answer, NoAnswer) and answer.status_code == 200:
                state.saw_start(await in_turns(read_start_time(answer.content)))
                state.saw_flags(await in_turns(read_flags(answer.content)))
        if probe.models is None:
            return True
        answer = await self._client.get(backend, probe.models)
        if isinstance(answer, NoAnswer):
            if not answer.own:
                state.evidence.dead(answer.reason, refused=answer.refused)
            return False
        if answer.status_code in (401, 403):
            state.evidence.misconfigured(f"refuses our credential ({answer.status_code}); check its api_key")
            return False
        if answer.status_code == 200:
            return self._record_models(state, decoded(answer, {}))
        return True

    def _record_models(self, state: BackendState, answer: Any) -> bool:
        backend = state.backend
        models = ENGINES[backend.engine].read_models(answer)
        if not models:
            return True  # not a list of models: nothing learned, nothing lost
        if backend.model is not None and backend.model not in models:
            names = ", ".join(visible(name[:NAME_SHOWN]) for name in list(models)[:5])
            state.evidence.misconfigured(
                quoting(f"does not serve model '{backend.model}'", f"it serves: {names}", "; ")
            )
            return False
        name = backend.model or next(iter(models))
        state.saw_model(name, models[name] or state.reported.context)
        state.evidence.configured()
        return True


def probe_of(backend: Backend) -> Probe | None:
    """How this backend is probed; None = not at all (clouds unless `health.every` is set on them)."""
    if backend.url is None or backend.health.every is None:
        return None
    return TRAITS[backend.engine].probe


def reported_version(answer: Any) -> str | None:
    """The version in the decoded answer of a server; None where there is none, or what is there cannot be one."""
    version = answer.get("version") if isinstance(answer, dict) else None
    if not isinstance(version, str) or not version.strip():
        return None
    return visible(version[:VERSION_MOST])
