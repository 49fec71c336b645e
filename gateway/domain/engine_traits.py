"""What each kind of server (`engine:` of routes.yaml) does and does not do, as data.

Code outside gateway/engines reads these rows instead of asking which engine a backend has, so it does not depend on how
requests are sent to an engine. To add an engine: its name in `Engine` (gateway/config/snapshot.py), a row here, and its
package with a line of the registry in gateway/engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

ThinkingField = Literal["chat_template_kwargs", "think", "reasoning_effort"]


@dataclass(frozen=True, slots=True)
class Probe:
    """The paths that the prober requests, below the server's root (`/health`) or its API (`models`). A server without
    `models` has no model list; any status below 500 then counts as healthy. `metrics`: vLLM's page of counters, which
    show whether the engine makes progress; None = there is none."""

    liveness: str | None  # None = `health.path` of routes.yaml
    models: str | None
    version: str | None
    metrics: str | None = None


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """What one kind of server does.

    `endpoints`: the names of the endpoints it serves, besides those that `serves` of routes.yaml names.
    `cuts_silently`: a prompt beyond the window is cut with a 200, so it must be known to fit before it is sent.
    `refuses_unread`: a prompt beyond the window is refused before all of it is computed, so a check may ask.
    `clamps_since`: from this version (major, minor) on it shortens the answer to what the window leaves; None = never.
    `counts_prompts`: it has vLLM's `/tokenize`.
    `calls_on_demand`: it honours `tool_choice` required and named.
    `emulates_calls`: its server lacks such a `tool_choice`, but the engine's client builds a call from structured
    output.
    `enforces_schema`: it enforces `response_format: json_schema`, whatever the model.
    `launch_flags`: vLLM's launch flags decide what it can do (parsers of calls and thoughts, media). Without a parser
    of calls it still renders the tools into the prompt.
    `model_optional`: a request without `model` goes to the first model it serves.
    `loads_on_demand`: it loads a model with the first request for it, or when its API is asked to (Ollama's).
    `continues_text`: it continues the last message of a chat where its text ends (`continue_final_message`).
    `thinking_field`: the field of a request that switches thinking; None = only what routes.yaml declares.
    `library`: requests go through a library for many clouds (litellm). Its model names begin with the provider, it
    knows prices, and it words its own error messages.
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
    continues_text: bool = False
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
            continues_text=True,
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
        # No probe: every request to a cloud is billed.
        "litellm": EngineTraits(
            frozenset({"chat", "embeddings"}), calls_on_demand=True, thinking_field="reasoning_effort", library=True
        ),
        # What one of these serves is in routes.yaml (`serves`). Speech servers have no path in common, so any answer
        # counts as alive.
        "http": EngineTraits(frozenset(), model_optional=True, probe=Probe(liveness=None, models=None, version=None)),
    }
)
