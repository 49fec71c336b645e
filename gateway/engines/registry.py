"""The engines by name. Adding one: a module beside this one, a line here, and its row in domain/engine_traits.py."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.engines.base import Engine
from gateway.engines.litellm.engine import LiteLLMEngine
from gateway.engines.ollama.engine import OllamaEngine
from gateway.engines.openai.engine import OpenAIEngine

ENGINES: Mapping[str, Engine] = {
    "vllm": OpenAIEngine("vllm"),
    "openai": OpenAIEngine("openai"),
    "ollama": OllamaEngine(),
    "litellm": LiteLLMEngine(),
}
