"""The formats that can be imported, and how a file is recognised: by its name and its first lines, YAML by its keys.
What is no script is never read as one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from gateway.apps.importing import compose, kubernetes, litellm, llama_swap, olla, shell_script, sparkrun, systemd
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
    "sparkrun": sparkrun.convert,
    "kubernetes": kubernetes.convert,
}
OURS = "routes.yaml"
_UNIT = re.compile(r"^\s*\[(Service|Unit|Install)\]\s*$", re.M)
_START = re.compile(r"^[^#\n]*\b(docker|podman)\s+(container\s+)?run\b|^[^#\n]*\bvllm\s+serve\b", re.M)
_KEY = re.compile(r"(?:---|%YAML.*|[\w\"'./-]+(?: [\w./-]+)*\s*:(?:\s.*)?|- .*)")
# What a file is that is read in no way: (signs in its name, signs in its first line, signs anywhere in it).
_OTHERS: Mapping[str, tuple[str, str, str]] = {
    "a Helm template": (r"\.tpl$", "", r"^apiVersion:(?s:.*)\{\{-?\s*(?:\.|include|if|range|toYaml|tpl)"),
    "a Markdown page": (r"\.(md|markdown|mdx|rst)$", "", r"^(?:```|~~~)"),
    "a Dockerfile": (r"(^|/)(Docker|Container)file|\.dockerfile$", r"(FROM|ARG) \S+.*|# syntax=.*", ""),
    "a Python program": (r"\.(py|ipynb)$", r"#!.*python.*|import \w.*|from [\w.]+ import .*", ""),
    "a Makefile": (r"(^|/)(GNU)?makefile|\.mk$|(^|/)justfile", r"\.PHONY\s*:.*", ""),
    "a PowerShell script": (r"\.(ps1|bat|cmd)$", "", ""),
    "JSON": (r"\.json[c5l]?$", r"\{.*", ""),
    "TOML": (r"\.toml$", "", ""),
    "a Quadlet unit": (r"\.(container|pod|kube)$", "", r"^\[Container\]\s*$"),
    "a file of variables": (r"(^|/)\.env(\.|$)|\.env$", "", ""),
}


def other_format(text: str, file: str) -> str | None:
    """What the file is, if it is something that is read in no way; None if it may be one of the formats."""
    if re.match(r"#!.*\b(ba|da|z)?sh\b", text):
        return None
    first = next((line for line in text.splitlines() if line.strip()), "")
    for name, (in_name, in_line, in_text) in _OTHERS.items():
        if in_name and re.search(in_name, file, re.IGNORECASE):
            return name
        found = re.search(in_text, text, re.M) is not None if in_text else False
        if found or (in_line and re.fullmatch(in_line, first)):
            return name
    return None


def text_format_of(text: str) -> str | None:
    """`systemd`, `shell`, or None for a text that is YAML, or nothing that is known."""
    if re.match(r"#!.*sh\b", text):
        return "shell"
    if _UNIT.search(text):
        return "systemd"
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    return "shell" if not _KEY.fullmatch(first.rstrip()) and _START.search(text) else None


def format_of(data: dict[str, Any]) -> str | None:
    """A name of FORMATS or STARTS, `routes.yaml`, or None for an unknown format."""
    if isinstance(data.get("model_list"), list) or "litellm_settings" in data:
        return "litellm"
    if isinstance(data.get("backends"), dict):
        return OURS
    if "apiVersion" in data and "kind" in data:
        return "kubernetes"
    if sparkrun.is_recipe(data):
        return "sparkrun"
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


def why_unknown(data: dict[str, Any]) -> str | None:
    """What a YAML file is that has nothing to read: named, so that nobody looks for a mistake in it."""
    if data.keys() & {"healthCheckTimeout", "startPort", "globalTTL", "logToStdout", "macros", "groups", "matrix"}:
        return "a llama-swap config without models: import the file that has them"
    if data.keys() & {"servingEngineSpec", "routerSpec", "replicaCount", "autoscaling", "ingress", "podAnnotations"}:
        return "values of a Helm chart: render it (helm template) and import the manifest"
    if "services" in data:
        return "a compose file without services"
    return None
