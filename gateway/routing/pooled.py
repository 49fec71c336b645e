"""Which backends of an alias may answer requests for vectors and scores. Pure.

Vectors of different models cannot be compared, even if they have the same size. A client stores them, and compares them
months later, so all vectors of an alias have to be those of one model: its first one that embeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.config.snapshot import Alias
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import EMBEDDINGS
from gateway.domain.pooled import count_inputs
from gateway.domain.request import SEQUENCES_MOST, InferenceRequest
from gateway.routing.resume import same_model


@dataclass(slots=True)
class Chain:
    """The common ground of an alias' backends for one request. `home`: the backend whose embeddings the alias gives;
    None if not known. `dimensions`: numbers in one of them, as far as known."""

    request: InferenceRequest
    home: BackendState | None
    dimensions: int | None
    _inputs: int | None = field(default=None, init=False)

    def why_not(self, state: BackendState) -> str | None:
        """Why this backend cannot answer this request; None if it can, or it is not known that it cannot."""
        return self._too_many(state) or (self._not_alike(state) if self.home is not None else None)

    def _too_many(self, state: BackendState) -> str | None:
        most = most_inputs(state)
        if self.request.prompt_bytes < 2 * most:
            return None  # each input has a byte and a comma
        if self._inputs is None:
            self._inputs = count_inputs(self.request) or 0
        if self._inputs <= most:
            return None
        return f"takes at most {most:,} inputs in one request (max_batch), and this one has {self._inputs:,}"

    def _not_alike(self, state: BackendState) -> str | None:
        home = self.home
        assert home is not None
        if state is not home and not is_comparable(state, home):
            own, its = (name_of(one) or "a model that is not known yet" for one in (state, home))
            return f"embeds with {own}, and this alias with {its} ({home.name}): they cannot be compared"
        size = dimensions_of(state)
        if size is None or self.dimensions is None or size == self.dimensions:
            return None
        return f"gives vectors of {size} numbers, and this alias gives {self.dimensions}: they cannot be compared"


def chain_of(alias: Alias, states: Mapping[str, BackendState], request: InferenceRequest, now: float) -> Chain:
    """The chain of this alias for a request to an endpoint that `pools`."""
    if request.endpoint is not EMBEDDINGS:
        return Chain(request, None, None)
    members = [state for step in alias.steps for name in step if (state := states.get(name)) is not None]
    embedding = [state for state in members if may_embed(state, now)]
    if not embedding:
        return Chain(request, None, None)
    home = next((state for state in embedding if says_it_embeds(state)), embedding[0])
    if name_of(home) is None and not says_it_embeds(home):
        return Chain(request, None, None)  # nothing is known to differ
    alike = [home, *(state for state in embedding if state is not home and is_comparable(state, home))]
    sizes = (dimensions_of(state) for state in alike)
    return Chain(request, home, next((size for size in sizes if size is not None), None))


def may_embed(state: BackendState, now: float) -> bool:
    return EMBEDDINGS.name in state.traits.endpoints and not state.facts.is_lacking("endpoint:" + EMBEDDINGS.name, now)


def says_it_embeds(state: BackendState) -> bool:
    """Does routes.yaml say that it embeds?"""
    backend = state.backend
    return EMBEDDINGS.name in backend.serves or backend.dimensions is not None or backend.embedding_model is not None


def dimensions_of(state: BackendState) -> int | None:
    """The numbers in one of its embeddings: as an answer has shown, else as routes.yaml says."""
    return state.facts.pooled.dimensions or state.backend.dimensions


def most_inputs(state: BackendState) -> int:
    """The inputs that it takes in one request."""
    return state.backend.max_batch or state.facts.pooled.most_inputs or SEQUENCES_MOST


def name_of(state: BackendState) -> str | None:
    """The model whose embeddings it gives."""
    return state.backend.embedding_model or _launched(state) or state.model


def is_comparable(one: BackendState, other: BackendState) -> bool:
    """Do two backends embed with the same model? `embedding_model` decides, else the models they are known to serve."""
    if one.backend.embedding_model is None and other.backend.embedding_model is None:
        return same_model(one, other)
    return not _names(one).isdisjoint(_names(other))


def _names(state: BackendState) -> set[str]:
    stated = state.backend.embedding_model
    names = (stated,) if stated is not None else (_launched(state), state.model)
    return {name for name in names if name is not None}


def _launched(state: BackendState) -> str | None:
    return state.backend.launch.parsed.model if state.backend.launch is not None else None
