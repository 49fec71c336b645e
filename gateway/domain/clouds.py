"""Clouds with OpenAI's API: their addresses, and the forms that they read, from their public references. Never asked
while this was written; what differs is learned from a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from gateway.domain.forms import Forms

_OPENAIS = (
    *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "verbosity", "service_tier", "store"),
    *("safety_identifier", "moderation", "prediction"),
)
_LOCAL = ("think", "enable_thinking", "thinking_budget", "chat_template_kwargs")
_SAMPLING = ("top_k", "min_p", "repetition_penalty")


def _refused(*names: str) -> frozenset[str]:
    return frozenset(names)


CLOUDS: Mapping[str, tuple[tuple[str, ...], Forms]] = MappingProxyType(
    {
        "openai-cloud": (
            ("api.openai.com",),
            Forms(
                developer=True,
                limit="max_completion_tokens",
                thinking="reasoning_effort",
                thoughts="none",
                ids="short",
                session="prompt_cache_key",
                refused=_refused("reasoning", *_LOCAL, *_SAMPLING),
            ),
        ),
        "chatgpt": (("chatgpt.com",), Forms(developer=True, session="session-id")),
        "opencode": (("opencode.ai",), Forms(session="x-opencode-session")),
        "router": ((), Forms(limit="both", session="x-session-id")),  # another gateway or router before engines
        "nvidia": (
            ("integrate.api.nvidia.com",),
            Forms(
                limit="max_tokens",
                thinking="none",
                refused=_refused(*_OPENAIS, "metadata", "user", "reasoning", "think", "enable_thinking"),
            ),
        ),
        "deepseek": (
            ("api.deepseek.com",),
            Forms(limit="max_tokens", thinking="type", thoughts="reasoning_content", ids="safe"),
        ),
        "mistral": (
            ("api.mistral.ai", "codestral.mistral.ai"),
            Forms(
                limit="max_tokens",
                efforts=("none", "high"),
                thinking="none",
                thoughts="none",
                ids="mistral",
                refused=_refused(*_OPENAIS, "user", "seed", "reasoning", "stream_options", *_LOCAL, *_SAMPLING),
            ),
        ),
        "moonshot": (
            ("api.moonshot.ai", "api.moonshot.cn"),
            Forms(limit="max_tokens", thinking="type", thoughts="reasoning_content"),
        ),
        "zai": (
            ("api.z.ai", "open.bigmodel.cn"),
            Forms(limit="max_tokens", thinking="type", thoughts="reasoning_content"),
        ),
        "minimax": (("api.minimax.io", "api.minimaxi.com"), Forms(limit="max_tokens", thinking="none")),
        "openrouter": (("openrouter.ai",), Forms(thinking="reasoning", thoughts="reasoning", ids="safe")),
        "fireworks": (
            ("api.fireworks.ai",),
            Forms(
                limit="max_tokens",
                thinking="reasoning_effort",
                thoughts="reasoning_content",
                refused=_refused("verbosity", "store", "safety_identifier", "moderation", "prompt_cache_options"),
            ),
        ),
    }
)
"""Name of the row -> (hosts, forms)."""

_BY_HOST = {host: name for name, (hosts, _) in CLOUDS.items() for host in hosts}


def at(url: str) -> str | None:
    """The row of the cloud with this address; None = it is none of these."""
    return _BY_HOST.get(urlsplit(url).hostname or "")
