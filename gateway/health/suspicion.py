"""A suspected backend is asked one tiny harmless request: does it answer others? Whatever `canary` says, since real
requests have just failed there, and may be to blame themselves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from gateway.domain.backend import BackendState
from gateway.domain.facts import Source
from gateway.domain.health_state import State
from gateway.domain.reason import prefixed, quoting
from gateway.domain.request import CHAT, COMPLETIONS, EMBEDDINGS, Endpoint
from gateway.health.checks import Reply, asks, subject_of
from gateway.health.checks.asks import Body
from gateway.health.checks.reply import read_stream, read_whole
from gateway.health.probes import ask
from gateway.inspection.error_replies import judge
from gateway.supervision import Failures

log = logging.getLogger("gateway.canary")

PATIENCE = 5.0  # seconds for its answer
AGAIN = 1.0  # seconds until one that did not answer is asked again
TOKENS = 16  # of its answer at most: that it comes is enough
CLOUD_EVERY = 60.0  # seconds between two such requests to a cloud, which cost money

Asking = asyncio.Task["Found"]
Ask = Callable[[], Coroutine[Any, Any, "Found"]]
Identity = tuple[str, str, str | None]  # of a backend: the same running thing


class Found(NamedTuple):
    """`lives`: it answers harmless requests; None = nobody can say. `gone`: nobody listens there any more."""

    lives: bool | None
    reason: str = ""
    refuses_us: bool = False
    gone: bool = False
    unserved: bool = False


class Suspicion:
    """Asks, one request at a time per backend, and moves its health by what comes back."""

    def __init__(self, failures: Failures | None = None) -> None:
        self._failures = failures or Failures()
        self._under_way: dict[Identity, Asking] = {}
        self._tried: dict[Identity, float] = {}  # clouds -> when last, in monotonic seconds
        self._closed = False

    def ask(
        self, state: BackendState, endpoint: Endpoint = CHAT, *, stream: bool = False, after: float = 0.0
    ) -> Asking:
        """Of a backend in the LAN that failed a request of this kind: one that answers is cleared, one that does not
        has failed once more, and is asked again until it answers or is down. `after`: seconds from now."""
        return self._start(state, lambda: self._ask(state, endpoint, stream=stream, after=after))

    def try_key(self, state: BackendState) -> Asking | None:
        """Of any that refused a request with 401 or 403, or does not know the model: only one that refuses a harmless
        request too is misconfigured. None = a cloud that was asked lately."""
        return self._try(state, lambda: self._try_key(state))

    def try_endpoint(self, state: BackendState, endpoint: Endpoint) -> Asking | None:
        """The same of one that answered that it does not serve this endpoint (404)."""
        return self._try(state, lambda: self._try_endpoint(state, endpoint))

    @property
    def busy(self) -> bool:
        """Is any harmless request under way?"""
        return bool(self._under_way)

    async def close(self) -> None:
        self._closed = True
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _try(self, state: BackendState, asking: Ask) -> Asking | None:
        now, key = time.monotonic(), state.backend.identity
        if state.backend.cloud and now - self._tried.get(key, -CLOUD_EVERY) < CLOUD_EVERY:
            return self._under_way.get(key)
        self._tried[key] = now
        return self._start(state, asking)

    def _start(self, state: BackendState, asking: Ask) -> Asking:
        key = state.backend.identity
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = self._failures.once("canary", asking(), f"suspicion of {state.name}")
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return task

    async def _ask(self, state: BackendState, endpoint: Endpoint, *, stream: bool, after: float) -> Found:
        if after:
            await asyncio.sleep(after)
        found = await _look(state, endpoint, stream=stream)
        if found.lives is False and endpoint is not CHAT and await _look(state, CHAT, stream=False) == Found(True):
            found = Found(True)  # one endpoint that is broken takes none of the others with it
        log.info("%s is suspected; a harmless request: %s", state.name, found.reason or "answered")
        if found.refuses_us:
            state.evidence.misconfigured(found.reason)
        elif found.lives:
            state.evidence.cleared()
        elif found.lives is False:
            state.evidence.unanswered(found.reason)
            if state.health.state is State.SUSPECT:
                asyncio.get_running_loop().call_later(AGAIN, self._ask_again, state, endpoint, stream)
        return found

    def _ask_again(self, state: BackendState, endpoint: Endpoint, stream: bool) -> None:
        if not self._closed and state.health.state is State.SUSPECT and state.health.unanswered_lately:
            self.ask(state, endpoint, stream=stream)

    async def _try_key(self, state: BackendState) -> Found:
        found = await _look(state, CHAT, stream=False)
        log.info("%s refused a request; a harmless one: %s", state.name, found.reason or "answered")
        if found.refuses_us:
            state.evidence.misconfigured(found.reason)
        return found

    async def _try_endpoint(self, state: BackendState, endpoint: Endpoint) -> Found:
        found = await _look(state, endpoint, stream=False)
        if found.unserved:
            state.facts.learn_lack("endpoint:" + endpoint.name, time.monotonic(), Source("harmless request"))
        return found


async def _look(state: BackendState, endpoint: Endpoint, *, stream: bool) -> Found:
    body = _harmless(state, endpoint, stream=stream)
    return found_in(await ask(state, body, PATIENCE, endpoint=endpoint), endpoint, stream=stream)


def _harmless(state: BackendState, endpoint: Endpoint, *, stream: bool) -> Body:
    if endpoint is EMBEDDINGS:
        return {"input": "hello"}
    if endpoint is COMPLETIONS:
        body: Body = {"prompt": "Say hello.", "max_tokens": TOKENS}
    else:
        body = asks.plain(subject_of(state.backend, state.model, state.reported.context))
        body["max_tokens"] = TOKENS
    return {**body, "stream": True} if stream else body


def found_in(reply: Reply, endpoint: Endpoint, *, stream: bool) -> Found:
    """What the reply to a harmless request says. Silence says nothing: it may be busy, and one that hangs is noticed by
    the silence of real requests."""
    if reply.failure is not None:
        reason = quoting("did not answer a harmless request", reply.failure)
        return Found(None if reply.ours or reply.silent else False, reason, gone=reply.gone)
    if reply.status == 200:
        if endpoint is EMBEDDINGS:
            return Found(True)
        said = read_stream(reply) if stream else read_whole(reply)
        if stream and isinstance(said, str):  # one that does not stream at all has answered nevertheless
            said = said if isinstance(read_whole(reply), str) else read_whole(reply)
        return Found(False, quoting("failed a harmless request", said)) if isinstance(said, str) else Found(True)
    verdict = judge(reply.status, reply.headers, reply.body, endpoint.name)
    if verdict.kind == "misconfigured":
        return Found(None, verdict.reason, refuses_us=True)
    reason = prefixed("a harmless request was ", verdict.reason)
    if verdict.kind == "failed":
        return Found(False, reason)
    return Found(None if verdict.kind == "cooldown" else True, reason, unserved=verdict.kind == "unserved")
