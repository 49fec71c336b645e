"""What each kind of server (`engine:` of routes.yaml) does and does not do, as data.

Adding an engine: a row here, and its client in gateway/engines/. Planning, capabilities and probing read these rows;
none of them needs to know how an engine is spoken to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Probe:
    """How the prober looks at a server: paths below its root (`/health`) or its API (`models`). Without `models` it has
    no list of them, and any answer but a failure (5xx) is a good one."""

    liveness: str | None  # None = `health.path` of routes.yaml
    models: str | None
    version: str | None


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """`endpoints`: the names of those it serves. `cuts_silently`: a prompt beyond the window is cut with a 200, so it
    must be known to fit before it is sent. `calls_on_demand`: `tool_choice` required or named means something to it.
    `emulates_calls`: its server knows no such `tool_choice`, but our side makes a call of structured output.
    `probe`: None = never probed."""

    endpoints: frozenset[str]
    cuts_silently: bool = False
    calls_on_demand: bool = False
    emulates_calls: bool = False
    probe: Probe | None = None


_OPENAI = frozenset({"chat", "completions", "embeddings"})

TRAITS: Mapping[str, EngineTraits] = MappingProxyType(
    {
        "vllm": EngineTraits(
            _OPENAI, calls_on_demand=True, probe=Probe(liveness=None, models="models", version="/version")
        ),
        "openai": EngineTraits(
            _OPENAI, calls_on_demand=True, probe=Probe(liveness="models", models="models", version=None)
        ),
        "ollama": EngineTraits(
            _OPENAI,
            cuts_silently=True,
            emulates_calls=True,
            probe=Probe(liveness="/api/tags", models="/api/tags", version="/api/version"),
        ),
        # Every look at a cloud would be billed.
        "litellm": EngineTraits(frozenset({"chat", "embeddings"}), calls_on_demand=True),
        # Speech servers and the like: they agree on no path, so that they answer at all is what counts.
        "http": EngineTraits(frozenset(), probe=Probe(liveness=None, models=None, version=None)),
    }
)
