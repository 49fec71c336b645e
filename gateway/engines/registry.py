"""The engines by name. Adding one: a file beside this one and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.engines.base import Engine, Probe
from gateway.engines.litellm.engine import LiteLLMEngine
from gateway.engines.ollama.engine import OllamaEngine
from gateway.engines.openai import OpenAIEngine

ENGINES: Mapping[str, Engine] = {
    "vllm": OpenAIEngine("vllm", Probe(liveness=None, models="models", version="/version")),
    "openai": OpenAIEngine("openai", Probe(liveness="models", models="models", version=None)),
    "ollama": OllamaEngine(),
    "litellm": LiteLLMEngine(),
}
