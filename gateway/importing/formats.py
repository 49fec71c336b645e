"""The formats that can be imported, and how a file is recognised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.importing import litellm, llama_swap, olla
from gateway.importing.draft import Draft
from gateway.importing.source import Source, mapping

FORMATS: Mapping[str, Callable[[Source], Draft]] = {
    "litellm": litellm.convert,
    "llama-swap": llama_swap.convert,
    "olla": olla.convert,
}
OURS = "routes.yaml"


def format_of(data: dict[str, Any]) -> str | None:
    """A name of FORMATS, `routes.yaml`, or None for an unknown format."""
    if isinstance(data.get("model_list"), list) or "litellm_settings" in data:
        return "litellm"
    if isinstance(data.get("backends"), dict):
        return OURS
    if "static" in mapping(data.get("discovery")):
        return "olla"
    models = mapping(data.get("models")).values()
    if any("cmd" in mapping(model) or "proxy" in mapping(model) for model in models):
        return "llama-swap"
    if any("proxy" in mapping(peer) for peer in mapping(data.get("peers")).values()):
        return "llama-swap"
    return None
