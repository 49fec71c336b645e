"""A backend's keys from the command line of its server: flags of vLLM and llama.cpp."""

from __future__ import annotations

import re
import shlex
from typing import Any

from gateway.launch.command import parse
from gateway.launch.docker import is_docker_run, read_docker_run
from gateway.launch.words import split

# flag -> the backend's key
_VLLM = {
    "max-model-len": "context",
    "max-num-seqs": "slots",
    "tool-call-parser": "tool_parser",
    "reasoning-parser": "reasoning_parser",
}
_LLAMA = {"--ctx-size": "context", "--parallel": "slots"}
_SHORT = {"-c": "--ctx-size", "-np": "--parallel"}


def backend_keys(command: str) -> dict[str, Any]:
    """The backend's keys. vLLM is the default engine and not named; any other command gets `engine: openai`."""
    words = list(split(command).words)
    if _is_vllm(words):
        return _of_vllm(words)
    flags = _flags([_SHORT.get(word, word) for word in words])
    found = {key: _count(flags[flag]) for flag, key in _LLAMA.items() if flag in flags}
    context, slots = found.get("context"), found.get("slots")
    if context and slots and "--kv-unified" not in flags and "-kvu" not in flags:
        found["context"] = context // slots  # llama.cpp divides its window among its slots
    return {"engine": "openai", **{key: value for key, value in found.items() if value}}


def _is_vllm(words: list[str]) -> bool:
    return any(re.search(r"(^|/)vllm($|[/:-])|vllm\.entrypoints", word) for word in words)


def _of_vllm(words: list[str]) -> dict[str, Any]:
    run = read_docker_run(words) if is_docker_run(words) else None
    command = (
        parse(shlex.join(words))
        if run is None
        else parse(shlex.join(run.command), image=run.image, entrypoint=run.entrypoint)
    )
    flags = command.flags
    keys = {key: flags[flag] for flag, key in _VLLM.items() if flag in flags}
    keys = {k: v for k, v in keys.items() if (isinstance(v, int) and v > 0 if k in ("context", "slots") else v)}
    if "tool_parser" in keys and not flags.get("enable-auto-tool-choice"):
        keys["auto_tools"] = False
    model = next(iter(command.served_names), "")
    return {**keys, **({"model": model} if model and "$" not in model else {})}


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


def _count(text: str) -> int | None:
    return int(text) or None if re.fullmatch(r"\d{1,9}", text, re.ASCII) else None
