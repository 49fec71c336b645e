"""LiteLLM's providers (litellm.yaml): which engine serves them here, and at which URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.apps.importing.counterparts import data_of
from gateway.engines.litellm.engine import ADDRESSES

Kind = Literal["vllm", "ollama", "openai", "litellm"]

OLLAMA = "http://localhost:11434"


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
    bare = next(
        (found for found, starts in data_of("litellm")["bare"].items() if model.startswith(tuple(starts))), None
    )
    return _cloud_or_sdk(bare, model, f"{bare}/{model}", has_url=False) if bare is not None else None


def _cloud_or_sdk(name: str, plain: str, model: str, *, has_url: bool) -> Provider | None:
    known = data_of("litellm")
    cloud = known["clouds"].get(name)
    if name in known["compatible"] and (has_url or cloud is None):
        return Provider(name, "openai", plain, needs_url=True)
    if cloud is not None:
        if name == "fireworks_ai" and "/" not in plain:
            plain = f"accounts/fireworks/models/{plain}"  # the short form that LiteLLM completes
        return Provider(name, "openai", plain, cloud["url"], cloud["key"])
    if name in known["sdk_keys"] or name in known["sdk_only"]:
        whole = model if model.startswith(f"{name}/") else f"{name}/{plain}"
        return Provider(name, "litellm", whole, None, known["sdk_keys"].get(name), needs_url=name not in ADDRESSES)
    return None
