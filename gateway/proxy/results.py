"""A whole answer of vectors or scores, judged: by itself, and beside the other backends of its alias."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from msgspec import Raw

from gateway.config.snapshot import Alias
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import EMBEDDINGS, RERANK, Endpoint
from gateway.domain.request import InferenceRequest
from gateway.inspection.pooled import PooledCheck
from gateway.inspection.whole import WholeAnswer
from gateway.routing.pooled import chain_of


async def judge_results(
    answer: WholeAnswer,
    request: InferenceRequest,
    alias: Alias,
    state: BackendState,
    states: Mapping[str, BackendState],
    serves: Callable[[BackendState, Endpoint], Awaitable[bool]],
) -> str | None:
    """What the backend cannot do, so that the client does not get this answer; None = it is usable, or wrong in itself
    (`answer.failure`). Results are read in steps, between which other requests get their turn. Notes what the answer
    shows of the backend. `serves`: does the backend serve this endpoint, too?"""
    if request.endpoint is EMBEDDINGS and await _ranks_only(state, serves):
        answer.results = Raw()
        return "answers with vectors of zeros, or of what its memory holds: it was started to rank, and embeds nothing"
    check = PooledCheck(request, answer.results, alias.params)
    answer.results = Raw()
    for _ in check.steps():
        await asyncio.sleep(0)
    answer.failure = check.fault
    if check.fault is not None or check.inability is not None:
        return check.inability
    _learn(state, request.endpoint, check.dimensions)
    return chain_of(alias, {**states, state.name: state}, request, time.monotonic()).why_not(state)


async def _ranks_only(state: BackendState, serves: Callable[[BackendState, Endpoint], Awaitable[bool]]) -> bool:
    """Does a server rank that either embeds or ranks? Its vectors do not always show it, so it is asked, once."""
    served = state.facts.pooled.served
    if not state.traits.embeds_or_ranks or state.backend.cloud or EMBEDDINGS.name in served:
        return False
    if RERANK.name not in served:
        if not await serves(state, RERANK):
            return False
        _learn(state, RERANK, None)
    return True


def _learn(state: BackendState, endpoint: Endpoint, dimensions: int | None) -> None:
    """Note that the backend serves this endpoint, and the size of its vectors (None = not to be told)."""
    known, name = state.facts.pooled, endpoint.name
    if name not in known.served or dimensions not in (None, known.dimensions):
        served = known.served | {name}
        state.facts.pooled = known._replace(served=served, dimensions=dimensions or known.dimensions)
