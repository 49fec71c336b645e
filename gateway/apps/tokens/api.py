"""`POST /tokenize` and `/detokenize`: the tokens of a prompt, and the text of tokens, in vLLM's words.

Tokens of different models mean different text, so all that tell them serve one model: that of the alias' first backend
which is not parked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import Response
from msgspec import Raw

from gateway.admission import access
from gateway.admission.origins import check_json
from gateway.api.answering import Question, answer
from gateway.apps.tokens.client import TokenClient, TokenizeError
from gateway.config.snapshot import Alias
from gateway.domain.backend import BackendState
from gateway.domain.body import read_fields, value_of
from gateway.domain.health_state import State
from gateway.domain.reason import reason_of
from gateway.domain.upstream import UpstreamFailure
from gateway.engines.outgoing import fill_in
from gateway.errors import GatewayError, PassedOn
from gateway.inspection.error_replies import judge
from gateway.large_bodies import apart_if_large
from gateway.proxy.exchange import AsgiExchange, ClientGone
from gateway.routing.refusal import expected_wait
from gateway.routing.resume import same_model
from gateway.routing.why_not import STARTING, unavailable
from gateway.runtime.gateway import Gateway

COMING = frozenset({"warming", STARTING})


class TokenizeFailure(NamedTuple):
    """Why a backend has not answered. `kind`: lacking (it cannot) | failed | a kind of `unavailable`. `timeout`: it was
    silent."""

    state: BackendState
    kind: str
    reason: str
    timeout: bool = False


def tokenizers_of(
    alias: Alias, states: Sequence[BackendState], now: float
) -> tuple[list[BackendState], list[TokenizeFailure]]:
    """(the backends to ask, in order; why the others are not asked). `states`: those of the alias, in its order."""
    here = [state for state in states if not state.backend.cloud and state.health.state is not State.PARKED]
    home = here[0] if here else None
    asked: list[BackendState] = []
    passed: list[TokenizeFailure] = []
    for state in states:
        if state.backend.cloud:
            passed.append(TokenizeFailure(state, "lacking", "is a cloud"))
        elif state.traits.counts.tokenizer is None:
            passed.append(TokenizeFailure(state, "lacking", f"has no tokenizer that can be asked ({state.server})"))
        elif home is not None and state is not home and not same_model(state, home):
            passed.append(TokenizeFailure(state, "lacking", f"serves another model than {home.name}"))
        elif not state.health.usable(now):
            passed.append(TokenizeFailure(state, *unavailable(state, now)))
        else:
            asked.append(state)
    return asked, passed


def refusal(alias: Alias, path: str, passed: Sequence[TokenizeFailure], now: float) -> GatewayError:
    """The error where no backend has answered."""
    why = "; ".join(f"{one.state.name} {one.reason}" for one in passed)
    failed = [one for one in passed if one.kind == "failed"]
    if failed:
        code = "upstream_timeout" if failed[-1].timeout else "upstream_error"
        return GatewayError(code, f"Every backend of alias '{alias.name}' that was tried failed: {why}")
    away = [one for one in passed if one.kind != "lacking"]
    if not away:
        return GatewayError("input_unsupported", f"No backend of alias '{alias.name}' takes {path}: {why}")
    code = "no_backend_available" if {one.kind for one in away}.isdisjoint(COMING) else "backend_warming"
    wait = min(expected_wait(one.state.health, now) for one in away)
    return GatewayError(code, f"No healthy backend for alias '{alias.name}': {why}", retry_after=wait)


WAIT = 60.0  # seconds for one backend, its client's turn included
TOKENIZE, DETOKENIZE = "tokenize", "detokenize"  # in gateway_requests_total
_OF_PROMPTS = ("chat_template", "chat_template_kwargs")  # of an alias' params, what changes a prompt


def router(gateway: Gateway) -> APIRouter:
    """They take no slot and do not wait for one: a server's tokenizer works beside its engine. `x-gateway-backend`
    names the backend that has answered."""
    routes = APIRouter()

    def asking(endpoint: str) -> Callable[[Question], Awaitable[bytes]]:
        async def work(asked: Question) -> bytes:
            fields, alias, sender = await _read(gateway, asked.exchange, endpoint)
            asked.alias = alias.name
            async with _while_there(asked.exchange):
                state, told = await _ask(gateway, alias, endpoint, fields, sender, asked.exchange)
            asked.backend = state.name
            return told

        return work

    async def tokenize(request: Request) -> Response:
        """The tokens of a prompt."""
        return await answer(gateway, request, TOKENIZE, asking(TOKENIZE))

    async def detokenize(request: Request) -> Response:
        """The text of tokens."""
        return await answer(gateway, request, DETOKENIZE, asking(DETOKENIZE))

    for prefix in ("/v1", ""):
        routes.add_api_route(f"{prefix}/{TOKENIZE}", tokenize, methods=["POST"])
        routes.add_api_route(f"{prefix}/{DETOKENIZE}", detokenize, methods=["POST"])
    return routes


async def _read(gateway: Gateway, exchange: AsgiExchange, endpoint: str) -> tuple[dict[str, Raw], Alias, str]:
    """(the body's fields, the alias that they name, the client). Raises `GatewayError`."""
    client = exchange.caller.identify(gateway.snapshot)
    check_json(exchange.headers)
    body = await exchange.read_body(gateway.snapshot.server.max_body)
    fields = await apart_if_large(client.name, len(body), partial(read_fields, body))
    model = value_of(fields.get("model"))
    if not isinstance(model, str) or not model:
        raise _invalid("`model` is missing or not a string: it names the alias to use.", "model")
    alias = access.find_alias(gateway.snapshot, client, model)
    if endpoint == DETOKENIZE:
        if not _begins(fields.get("tokens"), b"["):
            raise _invalid("`tokens` is missing or not a list of numbers.", "tokens")
    elif ("prompt" in fields) == ("messages" in fields):
        raise _invalid("Exactly one of `prompt` (a string) and `messages` (a list) is needed.", "prompt")
    elif "prompt" in fields and not _begins(fields["prompt"], b'"'):
        raise _invalid("`prompt` is not a string.", "prompt")
    elif "messages" in fields:
        fill_in(fields, {name: value for name, value in alias.params.items() if name in _OF_PROMPTS}, ())
    return fields, alias, client.name


async def _ask(
    gateway: Gateway, alias: Alias, endpoint: str, fields: dict[str, Raw], sender: str, exchange: AsgiExchange
) -> tuple[BackendState, bytes]:
    """(the backend that has answered, its answer in vLLM's words). A failure is told and moves on to the next backend;
    it does not count against the backend's health. Raises `GatewayError`."""
    now = time.monotonic()
    asked, passed = tokenizers_of(alias, [gateway.fleet.states[name] for step in alias.steps for name in step], now)
    for state in asked:
        asker = TokenClient(state, sender, exchange.share.add)
        try:
            async with asyncio.timeout(WAIT), state.counting.turn(sender):
                told = await (asker.tokens(fields) if endpoint == TOKENIZE else asker.text(fields))
            return state, told
        except TokenizeError as answer:
            verdict = judge(answer.status, answer.headers, answer.body, endpoint, model=state.model)
            if verdict.kind in ("client", "too_long", "incapable"):
                raise PassedOn(verdict.status, verdict.message, verdict.param, verdict.code) from None
            lacking = verdict.kind == "unserved" or answer.status in (404, 405)
            passed.append(TokenizeFailure(state, "lacking" if lacking else "failed", verdict.reason))
        except TimeoutError:
            passed.append(TokenizeFailure(state, "failed", f"has not answered within {WAIT:.0f} s", timeout=True))
        except UpstreamFailure as failure:
            passed.append(TokenizeFailure(state, "failed", reason_of(failure)))
    raise refusal(alias, f"/{endpoint}", passed, now)


@asynccontextmanager
async def _while_there(exchange: AsgiExchange) -> AsyncIterator[None]:
    """Raises `ClientGone` as soon as the client leaves."""
    task, gone = exchange.task(), asyncio.Event()

    def leave() -> None:
        gone.set()
        task.cancel()

    exchange.on_leave(leave)
    try:
        yield
    except asyncio.CancelledError:
        if not gone.is_set():
            raise
        task.uncancel()
        raise ClientGone from None
    finally:
        exchange.stop_watching()


def _begins(raw: Raw | None, with_: bytes) -> bool:
    return raw is not None and bytes(memoryview(raw)[:1]) == with_


def _invalid(message: str, param: str) -> GatewayError:
    return GatewayError("invalid_request_body", message, param=param)
