"""Holds the loads of Ollama's models. A real Ollama aborts a load when the client that began it leaves, so the gateway
begins it itself: all requests for the model wait for the one load, and it outlives those that leave."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid

from gateway.domain.backend import BackendState
from gateway.domain.facts import HeldModel
from gateway.domain.upstream import SilenceFailure
from gateway.engines.base import WholeResponse, authorized, read_out
from gateway.engines.ollama.installed_models import EMBED, LOAD, bounded, load_body
from gateway.engines.outgoing import JSON
from gateway.transport.h1 import post_json

log = logging.getLogger("gateway.engines")

LEFT = 60.0  # seconds for which a load goes on that nobody waits for any more


class HeldLoad:
    """A load of one backend's model under way; a `ModelLoad`. `refusal`: Ollama's answer that is no 200. `kept`: it
    goes on although nobody waits for it."""

    def __init__(
        self, state: BackendState, window: int | None, keep_alive: object, *, embeds: bool, kept: bool
    ) -> None:
        self.embeds = embeds
        self.window, self.kept, self.since = window, kept, time.monotonic()
        self.refusal: WholeResponse | None = None
        self._waiting = 0
        self._given_up: asyncio.TimerHandle | None = None
        self._task = asyncio.create_task(self._run(state, keep_alive), name=f"load {state.name}")
        self._task.add_done_callback(_retrieve)

    def cancel(self) -> None:
        self._task.cancel()

    async def wait(self) -> WholeResponse | None:
        """Ollama's refusal to load it; None = it is loaded. Raises UpstreamFailure."""
        if self._given_up is not None:
            self._given_up.cancel()
        self._waiting += 1
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._task.cancelled():  # the backend was closed
                raise SilenceFailure("the load of its model was given up") from None
            raise
        finally:
            self._waiting -= 1
            if not self._waiting and not self.kept and not self._task.done():
                self._given_up = asyncio.get_running_loop().call_later(LEFT, self._task.cancel)

    async def _run(self, state: BackendState, keep_alive: object) -> WholeResponse | None:
        absent, most = state.held is None, state.backend.timeouts.load
        try:
            async with asyncio.timeout(most):
                answer = await self._ask(state, keep_alive)
        except TimeoutError:
            raise SilenceFailure(f"its model was not loaded within {most:.0f} s (timeouts.load)") from None
        finally:
            if state.load is self:
                state.load = None
            state.unloaded_at = time.monotonic()
        if answer.status >= 300:
            return answer
        if absent:
            state.load_seconds = time.monotonic() - self.since
            log.info("%s has loaded its model in %.0f s", state.name, state.load_seconds)
        # Until its list is read again; how long Ollama keeps it is not known yet.
        state.saw_held(HeldModel(bounded(state, self.window) or 0, time.time()), time.monotonic())
        return None

    async def _ask(self, state: BackendState, keep_alive: object) -> WholeResponse:
        assert state.client is not None
        backend, path, body = state.backend, LOAD, load_body(state, keep_alive, self.window)
        if self.embeds:  # a model that only embeds refuses the other path
            path, body = EMBED, {**body, "input": [], "truncate": False}
        headers = authorized([JSON, ("x-request-id", f"probe-load-{uuid.uuid4().hex}")], backend)
        response = await post_json(state.client, backend.root_path + path, headers, body)
        return WholeResponse(response.status, await read_out(response), response.headers)


def is_ready(state: BackendState, window: int | None) -> bool:
    """Can a request with this `num_ctx` be sent without a load, as far as is known?"""
    if state.load is not None:
        return False
    held = state.held
    if held is None:
        return state.reported.loaded is not False  # not known: Ollama is left to load it
    return not window or not held.window or held.window == bounded(state, window)


def begin_load(
    state: BackendState, window: int | None, keep_alive: object = None, *, embeds: bool = False, kept: bool = False
) -> HeldLoad:
    """The load of its model that is under way, else a new one. `embeds`: for embeddings."""
    load = state.load
    if not isinstance(load, HeldLoad):
        load = state.load = HeldLoad(state, window, keep_alive, embeds=embeds, kept=kept)
    load.kept = load.kept or kept
    return load


async def loaded(
    state: BackendState, window: int | None, keep_alive: object, *, embeds: bool = False
) -> WholeResponse | None:
    """Wait until its model is loaded with this window. Returns Ollama's refusal to load it. Raises UpstreamFailure."""
    while not is_ready(state, window):
        refusal = await begin_load(state, window, keep_alive, embeds=embeds).wait()
        if refusal is not None:
            return WholeResponse(refusal.status, refusal.body, refusal.headers)  # each reader empties its own
    return None


def _retrieve(task: asyncio.Task[WholeResponse | None]) -> None:
    """So that a failed load for which nobody waits is not reported as a defect."""
    if not task.cancelled():
        task.exception()
