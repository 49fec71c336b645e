"""What each kind of server (`engine:` of routes.yaml) does and does not do, as data.

Everything outside gateway/engines reads these rows instead of asking which engine a backend has. Adding an engine: its
name in `Engine` (gateway/config/snapshot.py), a row here, and its package with a line of the registry in
gateway/engines. None of the readers needs to know how an engine is spoken to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

ThinkingField = Literal["chat_template_kwargs", "think", "reasoning_effort"]


@dataclass(frozen=True, slots=True)
class Probe:
    """How the prober looks at a server: paths below its root (`/health`) or its API (`models`). Without `models` the
    server has no list of them, and any answer but a failure (5xx) is a good one. `metrics`: a page of counters as vLLM
    writes them, which show whether the engine moves; None = there is none."""

    liveness: str | None  # None = `health.path` of routes.yaml
    models: str | None
    version: str | None
    metrics: str | None = None


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """What one kind of server does.

    `endpoints`: the names of those it serves.
    `cuts_silently`: a prompt beyond the window is cut with a 200, so it must be known to fit before it is sent.
    `refuses_unread`: a prompt beyond the window is refused before all of it is computed, so a check may ask.
    `clamps_since`: from this version (major, minor) on it shortens the answer to what the window leaves; None = never.
    `counts_prompts`: it has vLLM's `/tokenize`.
    `calls_on_demand`: `tool_choice` required or named means something to it.
    `emulates_calls`: its server knows no such `tool_choice`, but our side makes a call of structured output.
    `enforces_schema`: it enforces `response_format: json_schema`, whatever the model.
    `launch_flags`: flags of vLLM's decide what it can do (parsers of calls and thoughts, media). Without a parser of
    calls it still renders the tools into the prompt.
    `model_optional`: a request without `model` goes to the first model it serves.
    `loads_on_demand`: it loads a model with the first request for it, and may be told to (Ollama's API).
    `thinking_field`: the field of a request that switches thinking; None = only what routes.yaml declares.
    `library`: it is spoken to through a library for many clouds, whose names of models begin with the provider, which
    knows their prices, and whose texts of failures are not ours.
    `probe`: None = never probed."""

    endpoints: frozenset[str]
    cuts_silently: bool = False
    refuses_unread: bool = False
    clamps_since: tuple[int, int] | None = None
    counts_prompts: bool = False
    calls_on_demand: bool = False
    emulates_calls: bool = False
    enforces_schema: bool = False
    launch_flags: bool = False
    model_optional: bool = False
    loads_on_demand: bool = False
    thinking_field: ThinkingField | None = None
    library: bool = False
    probe: Probe | None = None

    @property
    def chats(self) -> bool:
        """Does it serve chat completions? Canaries, checks and benchmarks are for such servers only."""
        return "chat" in self.endpoints


_OPENAI = frozenset({"chat", "completions", "embeddings"})

TRAITS: Mapping[str, EngineTraits] = MappingProxyType(
    {
        "vllm": EngineTraits(
            _OPENAI,
            refuses_unread=True,
            clamps_since=(0, 32),
            counts_prompts=True,
            calls_on_demand=True,
            enforces_schema=True,
            launch_flags=True,
            model_optional=True,
            thinking_field="chat_template_kwargs",
            probe=Probe(liveness=None, models="models", version="/version", metrics="/metrics"),
        ),
        "openai": EngineTraits(
            _OPENAI, calls_on_demand=True, probe=Probe(liveness="models", models="models", version=None)
        ),
        "ollama": EngineTraits(
            _OPENAI,
            cuts_silently=True,
            emulates_calls=True,
            enforces_schema=True,
            loads_on_demand=True,
            thinking_field="think",
            probe=Probe(liveness="/api/tags", models="/api/tags", version="/api/version"),
        ),
        # Every look at a cloud would be billed.
        "litellm": EngineTraits(
            frozenset({"chat", "embeddings"}), calls_on_demand=True, thinking_field="reasoning_effort", library=True
        ),
        # Speech servers and the like: they agree on no path, so that they answer at all is what counts.
        "http": EngineTraits(frozenset(), probe=Probe(liveness=None, models=None, version=None)),
    }
)
