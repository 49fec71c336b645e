"""Runs the checks of `gateway/health/checks` against a backend, through the engine and the connections that requests
use, and reports the observations."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf

import msgspec

from gateway.domain.backend import BackendState
from gateway.domain.endpoints import CHAT, Endpoint
from gateway.domain.facts import Observation
from gateway.domain.request import parse
from gateway.domain.tokens import DECODE_PRIOR
from gateway.domain.upstream import ConnectFailure, OwnFailure, Response, TooLarge, UpstreamFailure
from gateway.engines.base import EngineRequest
from gateway.engines.ollama.installed_models import keep_alive_left
from gateway.engines.outgoing import outgoing_headers
from gateway.engines.registry import engine_of
from gateway.health.checks import ALL, CHECKS, CheckReply, Profile, judge, profile_of, skipped
from gateway.health.checks.requests import Body
from gateway.shortage import OwnShortage, shortage_of

log = logging.getLogger("gateway.canary")

IDLE_WAIT = 60.0  # seconds in total that a probe waits for the backend to be idle
LOOK = 0.1  # seconds between two tests whether it is idle
PATIENCE = 60.0  # seconds for an answer, in addition to the time for its tokens
TAIL = 64  # bytes at the end of a stream that are searched for [DONE]
BODY_MOST = 16 * 1024 * 1024  # bytes of an answer that are read

OnSeen = Callable[[str, Observation], None]

_encode = msgspec.json.Encoder().encode


async def probe(
    state: BackendState,
    checks: Iterable[str] = ALL,
    *,
    now: bool = False,
    brief: bool = False,
    patience: float | None = None,
    on_seen: OnSeen = lambda *_: None,
    replies: dict[bytes, CheckReply] | None = None,
) -> dict[str, Observation]:
    """Run the checks against a backend one by one, in any state of health. Returns check -> observation, and records
    the observations in the backend's state.

    Requests are sent only while the backend is idle; with `now` they are sent at once. Running all checks first drops
    everything learned about the backend. `brief`: with small limits, as canaries. `patience`: seconds for each answer,
    instead of `answer_budget`. `on_seen` is called after each check. `replies` is filled with: encoded body of a
    request -> its reply.
    """
    names = tuple(checks)
    if state.health.outside and state.loads_on_demand:
        parked = f"{state.health.reason}: a request would load its model"
        return {name: Observation("untested", parked, time.time()) for name in names}
    found: dict[str, Observation] = {}
    seconds_left = await wait_idle(state, IDLE_WAIT) if not now else 0.0
    if seconds_left is None:
        return {name: Observation("untested", _busy(state), time.time()) for name in names}
    if set(names) >= set(ALL):
        state.start_over()
    replies = replies if replies is not None else {}
    for name in names:
        if not now and seconds_left is not None:
            seconds_left = await wait_idle(state, seconds_left)
        profile = profile_of(state.backend, state.model, state.reported.context, state.traits)
        profile = replace(profile, brief=True) if brief else profile
        reason = skipped(name, profile, found) if state.traits.chats else "not a chat server"
        if reason is None and seconds_left is None:
            reason = _busy(state)
        if reason is not None:
            observation = Observation("untested", reason)
        else:
            observation = await _check(state, name, profile, replies, patience)
        found[name] = observation = replace(observation, at=time.time())
        if name != "life" and not any(reply.ours for reply in replies.values()):
            state.facts.observe({name: observation})
        on_seen(name, observation)
    return found


async def wait_idle(state: BackendState, seconds: float) -> float | None:
    """Wait up to `seconds` until no request is under way at the backend. Returns the seconds that are left; None: the
    backend is still busy."""
    until = time.monotonic() + seconds
    while state.under_way:
        if time.monotonic() >= until:
            return None
        await asyncio.sleep(LOOK)
    return until - time.monotonic()


def _busy(state: BackendState) -> str:
    return f"busy for {IDLE_WAIT:.0f} s ({state.inflight} under way): ask again, or with --now"


async def _check(
    state: BackendState, name: str, profile: Profile, replies: dict[bytes, CheckReply], patience: float | None
) -> Observation:
    """Run one check. A body that an earlier check has sent is not sent again: its reply is used."""
    body = CHECKS[name].ask(profile)
    key = _encode(body)
    if key not in replies:
        replies[key] = await send_probe(state, body, patience)
    return judge(name, profile, replies[key], body)


# -- one request ------------------------------------------------------------------------------------------------------


async def send_probe(
    state: BackendState, body: Body, patience: float | None = None, *, endpoint: Endpoint = CHAT
) -> CheckReply:
    """Send a request (without `model`) through the backend's engine. Raises nothing: a failure is in the reply."""
    seconds = patience or answer_budget(state, body)
    state.inflight += 1
    try:
        async with asyncio.timeout(seconds):
            return await _exchange(state, _call(state, body, endpoint))
    except TimeoutError:
        return CheckReply(failure=f"none within {seconds:.0f} s", silent=True)
    except OwnFailure as failure:
        return CheckReply(failure=str(failure), ours=True)
    except ConnectFailure as failure:
        return CheckReply(failure=f"no connection ({failure})", gone=True)
    except UpstreamFailure as failure:
        return CheckReply(failure=f"{failure.kind}: {failure}" if str(failure) else failure.kind)
    except Exception as error:
        if (kind := shortage_of(error)) is not None:
            return CheckReply(failure=str(OwnShortage(kind)), ours=True)
        log.exception("the probe of %s failed inside the gateway", state.name)
        return CheckReply(failure=f"the gateway failed: {type(error).__name__}: {error}", ours=True)
    finally:
        state.inflight -= 1


def answer_budget(state: BackendState, body: Body) -> float:
    """The seconds that an answer to `body` may take."""
    first = state.backend.timeouts.first_byte
    if first is not None and first != inf:
        return first
    loading = state.backend.timeouts.load if state.loads_on_demand and state.reported.loaded is not True else 0.0
    return PATIENCE + loading + float(body.get("max_tokens", 0)) / DECODE_PRIOR


def _call(state: BackendState, body: Body, endpoint: Endpoint) -> EngineRequest:
    if (keep_alive := keep_alive_left(state, time.time())) is not None:
        body = {**body, "keep_alive": keep_alive}
    request = parse(endpoint, _encode({"model": state.model or state.name, **body}))
    if state.model is None and state.traits.model_optional:
        del request.fields["model"]  # without a model the server uses its first one
    request_id = f"probe-{uuid.uuid4().hex}"
    return EngineRequest(
        endpoint, request.stream, request.fields, outgoing_headers({}, request_id), request_id, checks=True
    )


async def _exchange(state: BackendState, call: EngineRequest) -> CheckReply:
    response = await engine_of(state).send(state, call)
    try:
        body = await (_read_stream(response) if call.stream else response.read_all(BODY_MOST))
        return CheckReply(response.status, dict(response.headers), state.backend.without_key(body))
    finally:
        response.release()


async def _read_stream(response: Response) -> bytes:
    """Read all events up to [DONE], without waiting for the server to end the body after it."""
    body = bytearray()
    while not body[-TAIL:].rstrip().endswith(b"[DONE]") and (data := await response.read_some()):
        body += data
        if len(body) > BODY_MOST:
            raise TooLarge(f"the stream is larger than {BODY_MOST} bytes")
    return bytes(body)
