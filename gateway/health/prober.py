"""The prober. It checks the health of every backend every `health.every` seconds (does it answer, which models does it
serve, with which windows) and reads the counters of engines and the exporters of nodes. After each health check it
starts a canary where one is due."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial

from gateway.config.snapshot import Backend, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.engine_traits import Probe, traits_of
from gateway.domain.events import Event
from gateway.domain.fleet import Fleet
from gateway.domain.health_machine import ASLEEP
from gateway.domain.health_state import SERVING, WELL
from gateway.domain.progress import IDLE, Work
from gateway.health.canary_schedule import CanarySchedule
from gateway.health.engine_look import EngineLooks, looks_at_engine, pause
from gateway.health.nodes import Machine, NodeHealth, read_machine
from gateway.health.ollama_loader import OllamaLoader
from gateway.health.probe_client import (
    ALIVE_MOST,
    PROBE_TIMEOUT,
    ProbeClient,
    ProbeFailure,
    decoded,
    origin_of,
    target_of,
)
from gateway.health.recogniser import Recogniser
from gateway.health.suspect_probes import SuspectProbes
from gateway.shortage import Kind
from gateway.supervision import Failures, cancel
from gateway.transport.prometheus_text import in_turns

log = logging.getLogger("gateway.health")

FIRST_CHECKS_WAIT = 0.3  # seconds that a start or reload waits for the first health checks of backends
RECENT = 10.0  # seconds for which an event of a stream, or progress of the engine, shows that the backend works
EXPORTER_EVERY = 5.0  # seconds between two readings of a node's exporter
QUIET = PROBE_TIMEOUT  # seconds: nothing came while a check waited for its answer
OWN_LAG = 1.0  # seconds
AGAIN = 0.5  # seconds until the next check of a backend that has answered none
REREAD = 12  # good health checks until the model list and the version are read again

Jobs = list[Callable[[], Awaitable[None]]]


class Prober:
    """Runs one or two tasks per probed backend, one per exporter, and the warm standby. `work_of`: the requests of this
    gateway that are under way at a backend. `emit` receives the events of canaries; `on_short` is called with the
    resource that the gateway itself lacks."""

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
        self._client = ProbeClient(on_short)
        self._looks = EngineLooks(self._client, work_of)
        self._recogniser = Recogniser(self._client)
        self._tasks: dict[object, list[asyncio.Task[None]]] = {}
        self._immediate_checks: dict[object, asyncio.Task[None]] = {}  # by the id of the backend, or a look's name
        self._nodes = NodeHealth()
        self.machines: dict[str, Machine] = {}  # node -> the last report of its exporter
        self._spanned_nodes: frozenset[str] = frozenset()  # nodes of engines that run on several
        self.loader = OllamaLoader(self._client)
        self.canaries = CanarySchedule(
            self.loader.is_askable,
            emit,
            lambda s: self._nodes.excuse(s.name, s.backend.nodes),
            self._failures,
        )
        self.suspicion = SuspectProbes(self._failures)

    async def start(self, snapshot: Snapshot) -> None:
        """Start probing. Waits `FIRST_CHECKS_WAIT` at most, so that the first request finds the backends checked."""
        waiters = [asyncio.create_task(done.wait()) for done in self.follow_fleet(snapshot)]
        if waiters:
            _, unfinished = await asyncio.wait(waiters, timeout=FIRST_CHECKS_WAIT)
            for waiter in unfinished:
                waiter.cancel()

    def follow_fleet(self, snapshot: Snapshot) -> list[asyncio.Event]:
        """Probe the backends that the fleet has now and no others. To be called after each `Fleet.apply`. Returns one
        event per new backend, set after its first health check."""
        self._spanned_nodes = frozenset(n for b in snapshot.backends.values() if len(b.nodes) > 1 for n in b.nodes)
        first_checks: list[asyncio.Event] = []
        jobs_of: dict[object, Callable[[], Jobs]] = {}
        for state in self._fleet.states.values():  # keyed by all settings: an edited backend is checked at once
            jobs_of[state.backend] = partial(self._jobs, state, first_checks)
        exporters = {name: node.exporter for name, node in snapshot.nodes.items() if node.exporter is not None}
        for name, exporter in exporters.items():
            jobs_of[name, exporter] = partial(self._exporter_jobs, name, exporter)
        self._forget(snapshot, exporters)
        for key in self._tasks.keys() - jobs_of.keys():
            for task in self._tasks.pop(key):
                task.cancel()
        for key in jobs_of.keys() - self._tasks.keys():
            self._tasks[key] = [self._failures.task("probe", job) for job in jobs_of[key]()]
        return first_checks

    def _forget(self, snapshot: Snapshot, exporters: Collection[str]) -> None:
        """Drop the records of what is not in `snapshot`. `exporters`: the nodes that have an exporter."""
        for name in self.machines.keys() - exporters:
            del self.machines[name]
        backends = snapshot.backends.values()
        expected = [b for b in backends if b.run == "always" and b.parked is None]
        alone = {b.name: b.nodes[0] for b in expected if len(b.nodes) == 1}
        self._nodes.keep_only(alone, exporters)
        self.canaries.keep_only({backend.identity for backend in backends})
        urls = [node.exporter for node in snapshot.nodes.values() if node.exporter is not None]
        self._client.keep({*(backend.origin for backend in backends if backend.url), *map(origin_of, urls)})

    async def meet(self, states: Iterable[BackendState]) -> None:
        """Check backends before their first request. Waits at most `FIRST_CHECKS_WAIT`."""
        states = [state for state in states if probe_of(state.backend)]
        checks = [asyncio.create_task(self._try_check(state, read_models=True)) for state in states]
        if not checks:
            return
        try:
            await asyncio.wait(checks, timeout=FIRST_CHECKS_WAIT)
        finally:
            for check in checks:
                check.cancel()

    def _exporter_jobs(self, node: str, url: str) -> Jobs:
        return [partial(self._watch_exporter, node, url)]

    def _jobs(self, state: BackendState, first_checks: list[asyncio.Event]) -> Jobs:
        probe = probe_of(state.backend)
        if probe is None:
            canaried = state.backend.health.canary is not None and state.backend.on is None
            return [partial(self._watch_canaries, state)] if canaried else []
        first_check_done = asyncio.Event()
        first_checks.append(first_check_done)
        jobs: Jobs = [partial(self._watch, state, first_check_done)]
        may_show = looks_at_engine(probe) or state.backend.generic  # it may turn out to be a vLLM
        return [*jobs, partial(self._watch_progress, state)] if may_show else jobs

    async def close(self) -> None:
        tasks = [*(task for group in self._tasks.values() for task in group), *self._immediate_checks.values()]
        self._tasks.clear()
        await cancel(*tasks)
        await self.canaries.close()
        await self._client.close()

    # -- the loops -----------------------------------------------------------------------------------------------

    async def _watch(self, state: BackendState, first_check_done: asyncio.Event) -> None:
        checks = 0
        while True:
            every = state.backend.health.every
            if every is None:
                return
            try:
                check = self.hurry(state, read_models=checks % REREAD == 0)
                if check is not None:
                    await asyncio.wait([check])  # one at a time: it may have been under way
                state.evidence.load(full=state.is_full)
                self.canaries.run_if_due(state)
            except Exception:
                self._failures.note("probe", f"the probe of {state.name}")
            first_check_done.set()
            checks = checks + 1 if state.health.state in WELL else 0
            await asyncio.sleep(every * random.uniform(0.9, 1.1))

    async def _watch_canaries(self, state: BackendState) -> None:
        """Run canaries of a backend that has `health.canary` but no health checks (a cloud without `health.every`)."""
        while (every := state.backend.health.canary) is not None:
            self.canaries.run_if_due(state)
            await asyncio.sleep(every)

    async def _watch_progress(self, state: BackendState) -> None:
        while True:
            await asyncio.sleep(pause(state))
            try:
                await self.look_at_engine(state)
            except Exception:
                self._failures.note("probe", f"the look at {state.name}'s engine")

    async def _watch_exporter(self, node: str, url: str) -> None:
        while True:
            page = await self._client.page(url)
            if isinstance(page, ProbeFailure) and page.own:
                pass  # the probe failed inside this process and shows nothing about the node
            elif isinstance(page, ProbeFailure):
                self.machines[node] = self.machines.get(node, Machine(0.0, there=False)).gone(time.time())
            else:
                self.machines[node] = await in_turns(read_machine(page, time.time()))
            if not isinstance(page, ProbeFailure) or (page.refused and not page.own):
                self._nodes.record_exporter(node, reachable=not isinstance(page, ProbeFailure))
            await asyncio.sleep(EXPORTER_EVERY)

    # -- one check -------------------------------------------------------------------------------------------------

    async def look_at_engine(self, state: BackendState) -> None:
        """Read the engine's load. Only for servers that report it (`looks_at_engine`)."""
        await self._looks.look(state)

    def look_now(self, state: BackendState) -> asyncio.Task[None] | None:
        """Read the engine's load now, in a task; None = this kind of server does not report it."""
        state = state.host or state
        probe = probe_of(state.backend) and state.traits.probe
        if probe is None or not looks_at_engine(probe):
            return None
        key = f"look at {state.name}'s engine"
        return self._failures.only(self._immediate_checks, key, "probe", partial(self.look_at_engine, state), key)

    def hurry(self, state: BackendState, *, read_models: bool = False) -> asyncio.Task[None] | None:
        """Check the backend now, because something may have changed there; None = it is never checked. `read_models`:
        its list of models may have changed too."""
        state = state.host or state
        if probe_of(state.backend) is None:
            return None
        check, name = partial(self._try_check, state, read_models=read_models), f"look at {state.name}"
        return self._failures.only(self._immediate_checks, id(state), "probe", check, name)

    def _check_again(self, state: BackendState) -> None:
        """Another check of a backend that has not answered the last one, so that it is soon known whether it hangs."""
        if self._tasks and state.health.silent and state.health.state in SERVING:
            self.hurry(state)

    async def _try_check(self, state: BackendState, *, read_models: bool) -> None:
        try:
            await self.check(state, read_models=read_models)
        except Exception:
            self._failures.note("probe", f"the probe of {state.name}")

    async def check(self, state: BackendState, *, read_models: bool) -> None:
        """Run one health check. With `read_models`, and for what is not well, its models are read too."""
        probe = probe_of(state.backend) and state.traits.probe
        assert probe is not None
        path = probe.liveness or state.backend.health.path
        began = time.monotonic()
        response = await self._client.get(state.backend, path, ALIVE_MOST)
        if isinstance(response, ProbeFailure) and response.own:
            return  # the probe failed inside this process and shows nothing about the backend
        self._record_for_node(state, reachable=not (isinstance(response, ProbeFailure) and response.refused))
        if isinstance(response, ProbeFailure):
            if response.refused:
                self._recogniser.forget(state)
            now = time.monotonic()
            quiet_for = now - max(state.engine_event, state.progress.moved_at)
            mute = response.silent and state.traits.always_answers
            # Any other busy backend may answer late, while it sends something or its engine moves.
            hangs = response.silent and not state.traits.answers_late and quiet_for >= QUIET
            hangs = hangs and now - began < QUIET + OWN_LAG  # else this process was not there to read an answer
            if response.refused or mute or hangs or quiet_for > RECENT:
                state.evidence.dead(response.reason, refused=response.refused, silent=mute or hangs)
            if mute:
                state.evidence.mute = True  # though what it has begun may end well
                state.report("mute")
                self.hurry(state)
            elif hangs:
                state.report("silent")
                asyncio.get_running_loop().call_later(AGAIN, self._check_again, state)
            return
        if response.status in (401, 403):
            state.evidence.misconfigured(f"refuses our credential ({response.status}); check its api_key")
            return
        if response.status >= 500 or (response.status != 200 and probe.models is not None):
            state.evidence.dead(f"{target_of(state.backend, path)} answers {response.status}", answered=True)
            return
        if state.health.state not in SERVING and state.progress.is_deaf(IDLE, time.monotonic()):
            state.evidence.dead("its engine answers no look", answered=True)
            return
        read_models = read_models or (state.reported.loaded is not None and probe.held is None)  # models come and go
        if read_models or state.health.state not in WELL:
            is_right = await self._recogniser.read(state, probe)
            if not is_right and not state.health.asleep:  # whether it is awake has to be asked all the same
                return
        if (node := self._down_node(state)) is not None:
            state.evidence.dead(f"its node {node} is down")
            return
        if probe.held is not None:
            await self.loader.look(state)
        if probe.asleep is not None:
            asleep = await self._asleep(state, probe.asleep)
            if asleep:
                state.evidence.asleep(asleep)
                return
            state.evidence.awake()
        state.evidence.alive()

    async def _asleep(self, state: BackendState, path: str) -> str:
        """The reason to park a vLLM that somebody has put to sleep; "" = it is awake. Most servers lack the path (it
        exists with VLLM_SERVER_DEV_MODE=1): they are asked once."""
        engine = state.reported.version, state.reported.started
        if state.sleepless == engine:
            return ""
        response = await self._client.get(state.backend, path)
        if isinstance(response, ProbeFailure) or response.status >= 500:
            return state.health.reason if state.health.asleep else ""
        if response.status != 200:
            state.sleepless = engine
            return ""
        answer = decoded(response, {})
        if not isinstance(answer, dict) or answer.get("is_sleeping") is not True:
            return ""
        sample = state.progress.last
        level = f" at level {sample.sleep_level:.0f}" if sample is not None and sample.sleep_level else ""
        return f"{ASLEEP}{level}"

    def _record_for_node(self, state: BackendState, *, reachable: bool) -> None:
        """A backend on a single node is evidence about it, unless it is stopped on purpose."""
        nodes = state.backend.nodes
        is_evidence = state.backend.run == "always" and not state.health.held
        if is_evidence and len(nodes) == 1 and nodes[0] in self._spanned_nodes:
            self._nodes.record_backend(nodes[0], state.name, reachable=reachable)

    def _down_node(self, state: BackendState) -> str | None:
        """The node that is down and takes this backend down; None if no node is, or if the backend works without it.
        Once a backend with canaries is down, its canary decides when it is back, and not its nodes."""
        nodes = state.backend.nodes
        if len(nodes) < 2:
            return None
        if time.monotonic() - state.engine_event < RECENT:
            self._nodes.excuse(state.name, nodes)
        if state.health.canaried and state.health.state not in SERVING:
            return None
        return self._nodes.down_node_of(state.name, nodes)


def probe_of(backend: Backend) -> Probe | None:
    """How it is probed; None if it is not (clouds without `health.every`, and adapters, whose engine is)."""
    if backend.url is None or backend.health.every is None or backend.on is not None:
        return None
    return traits_of(backend).probe
