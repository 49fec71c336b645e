"""The clients of the engines by name. Adding an engine: its package beside this module and a line here, a row of traits
(gateway/domain/engine_traits.py), and its name in `Engine` (gateway/config/snapshot.py), from which the schema takes
the values of `engine`."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.engines.base import Engine
from gateway.engines.http.engine import HttpEngine
from gateway.engines.litellm.engine import LiteLLMEngine
from gateway.engines.ollama.engine import OllamaEngine
from gateway.engines.openai.engine import OpenAIEngine

ENGINES: Mapping[str, Engine] = {
    "vllm": OpenAIEngine("vllm"),
    "openai": OpenAIEngine("openai"),
    "ollama": OllamaEngine(),
    "litellm": LiteLLMEngine(),
    "http": HttpEngine(),
}
