"""Probes of suspected backends. When a request fails, either the backend or the request itself may be the cause. One
small harmless request shows whether the backend answers other requests. It does not depend on `health.canary`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from gateway.config.machines import Identity
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, RERANK, SCORE, Endpoint
from gateway.domain.facts import Source
from gateway.domain.health_state import State
from gateway.domain.reason import prefixed, quoting
from gateway.domain.upstream import ConnectFailure, OwnFailure, UpstreamFailure
from gateway.engines.base import authorized
from gateway.engines.ollama.installed_models import leaves_alone
from gateway.health.checks import CheckReply, profile_of, requests
from gateway.health.checks.reply import read_stream, read_whole
from gateway.health.checks.requests import Body
from gateway.health.probes import send_probe
from gateway.inspection.error_replies import judge
from gateway.supervision import Failures, cancel

log = logging.getLogger("gateway.canary")

PATIENCE = 5.0  # seconds for the answer to a harmless request
RETRY = 1.0  # seconds until a backend that did not answer is probed again
TOKENS = 16  # max_tokens: only whether an answer comes counts
CLOUD_EVERY = 60.0  # least seconds between two harmless requests to a cloud, because they cost money

_PROBED = (CHAT, COMPLETIONS, EMBEDDINGS, RERANK, SCORE)
_HARMLESS_INPUTS: dict[str, Body] = {
    "embeddings": {"input": "hello"},
    "rerank": {"query": "hello", "documents": ["hello"]},
    "score": {"text_1": "hello", "text_2": "hello"},
}

RunningProbe = asyncio.Task["ProbeResult"]
StartProbe = Callable[[], Coroutine[Any, Any, "ProbeResult"]]


class ProbeResult(NamedTuple):
    """The result of a harmless request. `lives`: the backend answers it; None if unknown. `refuses_us`: it refuses our
    credential. `gone`: no connection could be made. `unserved`: it does not serve this endpoint."""

    lives: bool | None
    reason: str = ""
    refuses_us: bool = False
    gone: bool = False
    unserved: bool = False


class SuspectProbes:
    """Sends at most one harmless request per backend at a time, and reports the result to the backend's health."""

    def __init__(self, failures: Failures | None = None) -> None:
        self._failures = failures or Failures()
        self._under_way: dict[Identity, RunningProbe] = {}
        self._sent_at: dict[Identity, float] = {}  # when the last one was sent, in monotonic seconds
        self._closed = False

    def probe(
        self, state: BackendState, endpoint: Endpoint = CHAT, *, stream: bool = False, after: float = 0.0
    ) -> RunningProbe:
        """Probe a local backend that failed a request of this kind. An answer clears the backend. Without an answer it
        has failed once more, and is probed again until it answers or is down. `after`: seconds until the probe."""
        return self._start(state, lambda: self._probe(state, endpoint, stream=stream, after=after))

    def probe_credential(self, state: BackendState) -> RunningProbe | None:
        """Probe a backend that refused a request with 401 or 403, or did not know the model: it is misconfigured
        only if it refuses a harmless request too. None if it is a cloud that was probed within `CLOUD_EVERY`."""
        return self._start_sparingly(state, lambda: self._probe_credential(state))

    def probe_endpoint(self, state: BackendState, endpoint: Endpoint) -> RunningProbe | None:
        """Probe a backend that answered a request with 404: it does not serve the endpoint only if a harmless
        request is answered so too. None if it is a cloud that was probed within `CLOUD_EVERY`."""
        return self._start_sparingly(state, lambda: self._probe_endpoint(state, endpoint))

    async def serves(self, state: BackendState, endpoint: Endpoint) -> bool:
        """Does the backend answer a harmless request to this endpoint? False also where it answers nothing."""
        return await _send(state, endpoint, stream=False) == ProbeResult(True)

    @property
    def busy(self) -> bool:
        """Is any harmless request under way?"""
        return bool(self._under_way)

    async def close(self) -> None:
        self._closed = True
        await cancel(*self._under_way.values())

    def _start_sparingly(self, state: BackendState, probe: StartProbe) -> RunningProbe | None:
        now, key = time.monotonic(), state.backend.identity
        if state.backend.cloud and now - self._sent_at.get(key, -CLOUD_EVERY) < CLOUD_EVERY:
            return self._under_way.get(key)
        self._sent_at[key] = now
        return self._start(state, probe)

    def _start(self, state: BackendState, probe: StartProbe) -> RunningProbe:
        name = f"suspicion of {state.name}"
        return self._failures.only(self._under_way, state.backend.identity, "canary", probe, name)

    async def _probe(self, state: BackendState, endpoint: Endpoint, *, stream: bool, after: float) -> ProbeResult:
        if after:
            await asyncio.sleep(after)
        found = await _send(state, endpoint, stream=stream)
        if (
            found.lives is False
            and endpoint is not CHAT
            and state.traits.chats
            and await _send(state, CHAT, stream=False) == ProbeResult(True)
        ):
            found = ProbeResult(True)  # one broken endpoint does not make the backend unhealthy
        log.info("%s is suspected; a harmless request: %s", state.name, found.reason or "answered")
        if found.refuses_us:
            state.evidence.misconfigured(found.reason)
        elif found.lives:
            state.evidence.cleared()
        elif found.lives is False:
            state.evidence.unanswered(found.reason)
            if state.health.state is State.SUSPECT:
                asyncio.get_running_loop().call_later(RETRY, self._probe_again, state, endpoint, stream)
        return found

    def _probe_again(self, state: BackendState, endpoint: Endpoint, stream: bool) -> None:
        health = state.health
        suspected = health.state is State.SUSPECT and not health.half_open  # a trial is decided by a client's request
        if not self._closed and suspected and health.unanswered_lately:
            self.probe(state, endpoint, stream=stream)

    async def _probe_credential(self, state: BackendState) -> ProbeResult:
        found = await _send(state, _usual(state), stream=False)
        log.info("%s refused a request; a harmless one: %s", state.name, found.reason or "answered")
        if found.refuses_us:
            state.evidence.misconfigured(found.reason)
        return found

    async def _probe_endpoint(self, state: BackendState, endpoint: Endpoint) -> ProbeResult:
        found = await _send(state, endpoint, stream=False)
        if found.unserved:
            state.facts.learn_lack("endpoint:" + endpoint.name, time.monotonic(), Source("harmless request"))
        return found


async def _look(state: BackendState) -> ProbeResult:
    """Ask a speech server whether it is there: a request for speech would cost it more than it tells."""
    assert state.client is not None
    path = state.backend.root_path + state.backend.health.path
    try:
        async with asyncio.timeout(PATIENCE):
            response = await state.client.send("GET", path, authorized([], state.backend), b"", fresh=True)
            response.abort()
    except TimeoutError:
        return ProbeResult(None, f"did not answer {path} within {PATIENCE:.0f} s")
    except UpstreamFailure as failure:
        ours, gone = isinstance(failure, OwnFailure), isinstance(failure, ConnectFailure)
        return ProbeResult(None if ours else False, quoting(f"did not answer {path}", str(failure)), gone=gone)
    if response.status in (401, 403):
        return ProbeResult(None, f"refuses our credential ({response.status}); check its api_key", refuses_us=True)
    return ProbeResult(response.status < 500, f"answered {path} with {response.status}")


async def _send(state: BackendState, endpoint: Endpoint, *, stream: bool) -> ProbeResult:
    if not state.traits.endpoints:
        return await _look(state)
    if state.health.outside and state.loads_on_demand:
        return ProbeResult(None, "was not asked: it is outside the mode in force, and would load its model")
    if state.server == "ollama" and not state.backend.exclusive and not leaves_alone(state, time.time()):
        return ProbeResult(None, "was not asked: it would load its model, and others use its server too")
    body = _harmless_body(state, endpoint, stream=stream)
    return result_of(await send_probe(state, body, PATIENCE, endpoint=endpoint), endpoint, stream=stream)


def _usual(state: BackendState) -> Endpoint:
    """An endpoint that it serves: chat, where it does."""
    served = state.traits.endpoints
    return CHAT if not served or CHAT.name in served else next(one for one in _PROBED if one.name in served)


def _harmless_body(state: BackendState, endpoint: Endpoint, *, stream: bool) -> Body:
    if endpoint.pools:
        return _HARMLESS_INPUTS[endpoint.name]
    if endpoint is COMPLETIONS:
        body: Body = {"prompt": "Say hello.", "max_tokens": TOKENS}
    else:
        body = requests.plain(profile_of(state.backend, state.model, state.reported.context, state.traits))
        body["max_tokens"] = TOKENS
    return {**body, "stream": True} if stream else body


def result_of(reply: CheckReply, endpoint: Endpoint, *, stream: bool) -> ProbeResult:
    """The result that follows from the reply to a harmless request. A timeout shows nothing, because the backend may be
    busy; a backend that hangs is detected by the timeouts of real requests."""
    if reply.failure is not None:
        reason = quoting("did not answer a harmless request", reply.failure)
        return ProbeResult(None if reply.ours or reply.silent else False, reason, gone=reply.gone)
    if reply.status == 200:
        if endpoint.pools:
            return ProbeResult(True)
        answer = read_stream(reply) if stream else read_whole(reply)
        if not isinstance(answer, str) or (stream and not isinstance(read_whole(reply), str)):
            return ProbeResult(True)  # a whole answer to a request for a stream counts too
        return ProbeResult(False, quoting("failed a harmless request", answer))
    verdict = judge(reply.status, reply.headers, reply.body, endpoint.name)
    if verdict.kind == "misconfigured":
        return ProbeResult(None, verdict.reason, refuses_us=True)
    reason = prefixed("a harmless request was ", verdict.reason)
    if verdict.kind == "failed":
        return ProbeResult(False, reason)
    return ProbeResult(None if verdict.kind == "cooldown" else True, reason, unserved=verdict.kind == "unserved")
