"""A backend's keys from the command line of its server: flags of vLLM and llama.cpp."""

from __future__ import annotations

import re
import shlex
from typing import Any

from gateway.launch.command import parse
from gateway.launch.docker import is_docker_run, read_docker_run
from gateway.launch.words import split

# flag -> the backend's key; the value is text or a count as the key wants it
_VLLM = {
    "--max-model-len": "context",
    "--max-num-seqs": "slots",
    "--tool-call-parser": "tool_parser",
    "--reasoning-parser": "reasoning_parser",
}
_LLAMA = {"--ctx-size": "context", "--parallel": "slots"}
_SHORT = {"-c": "--ctx-size", "-np": "--parallel"}
_COUNTS = ("context", "slots")
_THOUSANDS = {"k": 1000, "K": 1024, "m": 1_000_000, "M": 1024 * 1024}


def backend_keys(command: str) -> dict[str, Any]:
    """The backend's keys. vLLM is the default engine and not named; any other command gets `engine: openai`."""
    words = list(split(command).words)
    flags = _flags(words)
    if _is_vllm(words):
        keys: dict[str, Any] = {key: _value(key, flags[flag]) for flag, key in _VLLM.items() if flag in flags}
        if "tool_parser" in keys and "--enable-auto-tool-choice" not in flags:
            keys["auto_tools"] = False
        model = flags.get("--served-model-name") or flags.get("--model") or _after_serve(words) or _positional(words)
        keys |= {"model": model} if model and "$" not in model else {}
        return {key: value for key, value in keys.items() if value is not None}
    flags = _flags([_SHORT.get(word, word) for word in words])
    found = {key: _value(key, flags[flag]) for flag, key in _LLAMA.items() if flag in flags}
    context, slots = found.get("context"), found.get("slots")
    if context and slots and "--kv-unified" not in flags and "-kvu" not in flags:
        found["context"] = context // slots  # llama.cpp divides its window among its slots
    return {"engine": "openai", **{key: value for key, value in found.items() if value}}


def _is_vllm(words: list[str]) -> bool:
    return any(re.search(r"(^|/)vllm($|[/:-])|vllm\.entrypoints", word) for word in words)


def _after_serve(words: list[str]) -> str | None:
    """The model in `vllm serve MODEL`."""
    for i, word in enumerate(words[:-1]):
        if word == "serve" and not words[i + 1].startswith("-"):
            return words[i + 1]
    return None


def _positional(words: list[str]) -> str | None:
    """The model that stands behind flags, or alone behind an image that serves by itself."""
    if is_docker_run(words):
        run = read_docker_run(words)
        return parse(shlex.join(run.command), image=run.image, entrypoint=run.entrypoint).model
    return parse(shlex.join(words)).model


def _flags(words: list[str]) -> dict[str, str]:
    """`--flag value`, `--flag=value` and `--flag` (empty). The last of a repeated flag counts, as in the servers: a
    model overrides its macro."""
    found: dict[str, str] = {}
    for i, word in enumerate(words):
        if not word.startswith("-"):
            continue
        flag, equals, value = word.partition("=")
        if not equals and i + 1 < len(words) and not words[i + 1].startswith("-"):
            value = words[i + 1]
        found[flag] = value
    return found


def _value(key: str, text: str) -> Any:
    """A count (vLLM also accepts 128k) or the text; None for an invalid value."""
    if key not in _COUNTS:
        return text or None
    match = re.fullmatch(r"(\d{1,9})([kKmM]?)", text, re.ASCII)
    return (int(match[1]) * _THOUSANDS.get(match[2], 1) or None) if match else None
