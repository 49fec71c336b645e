"""LiteLLM's providers: which engine serves them here, and at which URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.engines.litellm.engine import ADDRESSES

Kind = Literal["vllm", "ollama", "openai", "litellm"]

OLLAMA = "http://localhost:11434"

# Local servers that speak OpenAI's API.
_COMPATIBLE = frozenset(
    (
        "openai", "custom_openai", "text-completion-openai", "openai_like", "aiohttp_openai", "litellm_proxy",
        "lm_studio", "llamafile", "docker_model_runner", "xinference", "lemonade", "infinity", "oobabooga",
        "ragflow", "petals",
    )
)  # fmt: skip

# Clouds that speak OpenAI's API: base URL (with its /vN or /openai) and the variable that usually holds the key.
_CLOUDS = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "text-completion-openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "cerebras": ("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "deepinfra": ("https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY"),
    "deepseek": ("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "fireworks_ai": ("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "groq": ("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "hyperbolic": ("https://api.hyperbolic.xyz/v1", "HYPERBOLIC_API_KEY"),
    "mistral": ("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "moonshot": ("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
    "nebius": ("https://api.studio.nebius.ai/v1", "NEBIUS_API_KEY"),
    "novita": ("https://api.novita.ai/v3/openai", "NOVITA_API_KEY"),
    "nvidia_nim": ("https://integrate.api.nvidia.com/v1", "NVIDIA_NIM_API_KEY"),
    "openrouter": ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "sambanova": ("https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
    "together_ai": ("https://api.together.xyz/v1", "TOGETHERAI_API_KEY"),
    "xai": ("https://api.x.ai/v1", "XAI_API_KEY"),
}

# The others, through the litellm SDK: the variable that usually holds the key (none = several, or no key).
_SDK_KEYS = {
    "anthropic": "ANTHROPIC_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "cohere": "COHERE_API_KEY",
    "cohere_chat": "COHERE_API_KEY",
    "azure": "AZURE_API_KEY",
    "azure_ai": "AZURE_AI_API_KEY",
    "perplexity": "PERPLEXITYAI_API_KEY",
    "replicate": "REPLICATE_API_KEY",
    "huggingface": "HUGGINGFACE_API_KEY",
}
_SDK_ONLY = frozenset(("vertex_ai", "vertex_ai_beta", "bedrock", "bedrock_converse", "sagemaker", "sagemaker_chat",
                       "watsonx", "databricks", "snowflake", "oci", "ai21", "cloudflare", "github_copilot", "zai",
                       "dashscope", "volcengine", "minimax", "friendliai", "featherless_ai", "meta_llama"))  # fmt: skip

# Beginnings of model names for which LiteLLM infers the provider.
_BARE = (
    (("gpt-", "o1", "o3", "o4", "chatgpt-", "text-embedding-", "whisper-", "tts-", "ft:gpt"), "openai"),
    (("claude-",), "anthropic"),
    (("gemini-",), "gemini"),
    (("command-",), "cohere"),
    (("mistral-", "codestral-"), "mistral"),
)


@dataclass(frozen=True, slots=True)
class Provider:
    """`model`: the name for requests. `url`: the default; None if it must be given (engine `litellm`: or the SDK has
    one). `key`: the variable that usually holds the key. `needs_url`: there is no default."""

    name: str
    engine: Kind
    model: str
    url: str | None = None
    key: str | None = None
    needs_url: bool = False


def provider_of(model: str, declared: str | None, *, has_url: bool) -> Provider | None:
    """The provider of LiteLLM's `model` (`provider/name`, or a bare name), where `declared` is `custom_llm_provider`.

    None if it cannot be inferred, or LiteLLM has no such provider.
    """
    prefix, slash, rest = model.partition("/")
    name = declared or (prefix if slash else None)
    plain = rest if slash and prefix == name else model
    if name in ("hosted_vllm", "vllm"):
        return Provider("vllm", "vllm", plain, needs_url=True)
    if name in ("ollama", "ollama_chat"):
        return Provider("ollama", "ollama", plain, OLLAMA)
    if name is not None and (found := _cloud_or_sdk(name, plain, model, has_url=has_url)) is not None:
        return found
    if has_url:  # LiteLLM treats such a name as a model of an OpenAI-compatible server
        return Provider("openai", "openai", model)
    bare = next((found for starts, found in _BARE if model.startswith(starts)), None)
    return _cloud_or_sdk(bare, model, f"{bare}/{model}", has_url=False) if bare is not None else None


def _cloud_or_sdk(name: str, plain: str, model: str, *, has_url: bool) -> Provider | None:
    if name in _COMPATIBLE and (has_url or name not in _CLOUDS):
        return Provider(name, "openai", plain, needs_url=True)
    if name in _CLOUDS:
        url, key = _CLOUDS[name]
        if name == "fireworks_ai" and "/" not in plain:
            plain = f"accounts/fireworks/models/{plain}"  # the short form that LiteLLM completes
        return Provider(name, "openai", plain, url, key)
    if name in _SDK_KEYS or name in _SDK_ONLY:
        whole = model if model.startswith(f"{name}/") else f"{name}/{plain}"
        return Provider(name, "litellm", whole, None, _SDK_KEYS.get(name), needs_url=name not in ADDRESSES)
    return None
