"""The formats that can be imported, and how a file is recognised: first by its text, YAML by its keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from gateway.apps.importing import compose, litellm, llama_swap, olla, shell_script, systemd
from gateway.apps.importing.draft import Draft
from gateway.apps.importing.source import SourceFile, mapping

FORMATS: Mapping[str, Callable[[SourceFile], Draft]] = {
    "litellm": litellm.convert,
    "llama-swap": llama_swap.convert,
    "olla": olla.convert,
}
# What starts engines on a machine: (text, name of the file, address of the machine or None) -> Draft.
STARTS: Mapping[str, Callable[[str, str, str | None], Draft]] = {
    "systemd": systemd.convert,
    "compose": compose.convert,
    "shell": shell_script.convert,
}
OURS = "routes.yaml"
_UNIT = re.compile(r"^\s*\[Service\]\s*$", re.M)
_YAML = re.compile(
    r"^(services|models|model_list|backends|discovery|litellm_settings|peers|general_settings)\s*:", re.M
)
_START = re.compile(r"^[^#\n]*\b(docker|podman)\s+(container\s+)?run\b|^[^#\n]*\bvllm\s+serve\b|^#!.*sh\b", re.M)


def text_format_of(text: str) -> str | None:
    """`systemd`, `shell`, or None for a text that may be YAML."""
    if _UNIT.search(text):
        return "systemd"
    return "shell" if not _YAML.search(text) and _START.search(text) else None


def format_of(data: dict[str, Any]) -> str | None:
    """A name of FORMATS, `routes.yaml`, or None for an unknown format."""
    if isinstance(data.get("model_list"), list) or "litellm_settings" in data:
        return "litellm"
    if isinstance(data.get("backends"), dict):
        return OURS
    if isinstance(data.get("services"), dict):
        return "compose"
    if "static" in mapping(data.get("discovery")):
        return "olla"
    models = mapping(data.get("models")).values()
    if any("cmd" in mapping(model) or "proxy" in mapping(model) for model in models):
        return "llama-swap"
    if any("proxy" in mapping(peer) for peer in mapping(data.get("peers")).values()):
        return "llama-swap"
    return None
