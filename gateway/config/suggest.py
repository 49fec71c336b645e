"""The parsers that vLLM knows, and suggestions for unknown words: by edit distance, and by the words that other
programs (vLLM, LiteLLM, Ollama) use."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

from gateway.launch.flags import flag_names

# Of vLLM 0.20 to 0.33. A name that is not here is a warning: plugins add their own.
# fmt: off
TOOL_PARSERS = frozenset(
    (
        "apertus", "beam", "cohere_command3", "cohere_command4", "deepseek_v3", "deepseek_v31", "deepseek_v32",
        "deepseek_v4", "deepseek_v41", "dots", "ernie45", "functiongemma", "gemma4", "gigachat3", "glm45",
        "glm47", "granite", "granite-20b-fc", "granite4", "hermes", "hf", "hunyuan_a13b", "hy_v3", "hy_v4",
        "inkling", "internlm", "jamba", "k2_horizon", "kimi_k2", "kimi_k3", "lfm2", "ling3", "llama3_json",
        "llama4_json", "llama4_pythonic", "longcat", "mimo", "minicpm5", "minimax", "minimax_m2", "minimax_m3",
        "mistral", "muse", "muse_glimmer", "musespark1x", "olmo3", "openai", "phi4_mini_json", "plamo3",
        "poolside_v1", "pythonic", "qwen3_coder", "qwen3_json", "qwen3_xml", "seed_oss", "step3", "step3p5",
        "step5", "xlam",
    )
)
# fmt: on

# fmt: off
REASONING_PARSERS = frozenset(
    (
        "beam", "cohere_cmd", "cohere_command3", "cohere_command4", "deepseek_r1", "deepseek_v3", "deepseek_v4",
        "deepseek_v41", "ernie45", "gemma4", "glm45", "glm47", "granite", "granite_thinking_parser", "hf",
        "holo2", "hunyuan_a13b", "hy_v3", "hy_v4", "inkling", "k2_horizon", "kimi", "kimi_k2", "kimi_k3", "ling3",
        "mimo", "minicpmv", "minimax_m2", "minimax_m2_append_think", "minimax_m3", "mistral", "muse",
        "muse_glimmer", "musespark1x", "nano_v3", "nemotron_v3", "olmo3", "openai_gptoss", "plamo3",
        "poolside_v1", "qwen3", "seed_oss", "step3", "step3p5", "step5",
    )
)
# fmt: on


# word → where it lives here. `*` is a name that the operator chose.
FOREIGN = {
    # vLLM's launch flags
    "max_model_len": "backends.*.context",
    "max_num_seqs": "backends.*.slots",
    "tool_call_parser": "backends.*.tool_parser",
    "enable_auto_tool_choice": "backends.*.auto_tools",
    "served_model_name": "backends.*.model",
    "reasoning_backend": "backends.*.reasoning_parser",
    # Ollama
    "num_ctx": "backends.*.context",
    "num_parallel": "backends.*.slots",
    # LiteLLM and other gateways
    "api_base": "backends.*.url",
    "apibase": "backends.*.url",
    "base_url": "backends.*.url",
    "baseurl": "backends.*.url",
    "endpoint": "backends.*.url",
    "address": "backends.*.url",
    "host": "backends.*.url",
    "apikey": "backends.*.api_key",
    "token": "backends.*.api_key",
    "provider": "backends.*.engine",
    "custom_llm_provider": "backends.*.engine",
    "type": "backends.*.engine",
    "model_id": "backends.*.model",
    "context_length": "backends.*.context",
    "context_window": "backends.*.context",
    "max_input_tokens": "backends.*.context",
    "window": "backends.*.context",
    "max_parallel_requests": "backends.*.slots",
    "concurrency": "backends.*.slots",
    "parallel": "backends.*.slots",
    "supports_pdf_input": "backends.*.pdf",
    "supports_vision": "backends.*.vision",
    "reasoning": "backends.*.thinking",
    "timeout": "backends.*.timeouts",
    "request_timeout": "backends.*.timeouts",
    "stream_timeout": "backends.*.timeouts",
    "health_check": "backends.*.health",
    "healthcheck": "backends.*.health",
    "interval": "backends.*.health.every",
    "machine": "backends.*.node",
    "backend": "aliases.*.use",
    "steps": "aliases.*.use",
    "chain": "aliases.*.use",
    "targets": "aliases.*.use",
    "routes": "aliases",
    "models": "aliases",
    "fallback": "aliases.*.use",
    "fallbacks": "aliases.*.use",
    "context_window_fallbacks": "aliases.*.use",
    "model_group_alias": "aliases.*.also",
    "names": "aliases.*.also",
    "routing_strategy": "aliases.*.balance",
    "strategy": "aliases.*.balance",
    "extra_body": "aliases.*.params",
    "default_params": "aliases.*.params",
    "temperature": "aliases.*.params",
    "top_p": "aliases.*.params",
    "top_k": "aliases.*.params",
    "chat_template_kwargs": "aliases.*.params",
    "enable_thinking": "aliases.*.thinking",
    "max_tokens": "aliases.*.params",
    "min_tokens": "aliases.*.min_max_tokens",
    "rpm_limit": "clients.*.rpm",
    "tpm_limit": "clients.*.tpm",
    "max_budget": "clients.*.budget",
    "virtual_key": "clients.*.key",
    "master_key": "clients.*.key",
    "keys": "clients",
    "users": "clients",
    "port": "server.listen",
    "bind": "server.listen",
    "redis_url": "server.shared",
    "redis": "server.shared",
    "max_body_size": "server.max_body",
    "servers": "backends",
    "hosts": "nodes",
}

# Words without a single counterpart, with what to do instead.
EXPLAINED = {
    "launch": "launch blocks stand under a backend: backends.NAME.launch",
    "profiles": "profiles stand under a backend, beside its launch block: backends.NAME.profiles",
    "model_list": "LiteLLM's list: here `backends` say what exists and `aliases` say what clients may ask for",
    "litellm_params": "LiteLLM's: write url, model and api_key directly under the backend",
    "model_name": "the name clients ask for is a key under `aliases`; the backend's own model name is `model`",
    "router_settings": "LiteLLM's: the order of steps is in `aliases.*.use`, limits are in `clients` and `defaults`",
    "litellm_settings": "LiteLLM's: timeouts are in `defaults.timeouts`, fallbacks are the steps of an alias",
    "general_settings": "LiteLLM's: the listener is in `server`, keys are in `clients`",
    "num_retries": "there is no count of retries: every step of the alias is tried once",
    "max_retries": "there is no count of retries: every step of the alias is tried once",
    "retries": "there is no count of retries: every step of the alias is tried once",
    "weight": "there are no weights: members of a step are balanced by load, see `aliases.*.balance`",
    "tensor_parallel_size": "a launch flag of vLLM: it belongs in `launch.command`; `node` takes a list",
    "join_retries": "the key was removed, and each repeat of a request runs: delete this line",
    "drop_params": "see `aliases.*.on_unsupported`",
    "<<": "YAML 1.2 has no merge keys: what backends share goes under `defaults`",
}


_MOST_LISTED = 12
_NEAR = 0.6  # how alike two words are that may be the same one, misspelt
_VERY_NEAR = 0.85  # for a word of another program: many short words are near to one of so many


def closest(word: str, choices: Iterable[str], cutoff: float = _NEAR) -> str | None:
    """The one of `choices` that `word` was probably meant to be, or None."""
    by_folded = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(word.lower(), by_folded, n=1, cutoff=cutoff)
    return by_folded[found[0]] if found else None


def did_you_mean(word: str, choices: Iterable[str]) -> str | None:
    found = closest(word, choices)
    return f"did you mean '{found}'?" if found else None


def listed(names: Iterable[str]) -> str | None:
    """The names that there are, or the first of many."""
    first = list(islice(names, _MOST_LISTED))
    return "there are " + ", ".join(first) if first else None


def for_unknown_key(key: str, section: str, siblings: Iterable[str], elsewhere: Iterable[str]) -> str | None:
    """A hint for the unknown `key` in `section` (`backends.*`).

    `siblings` are the keys allowed there, `elsewhere` all dotted paths of the file; both are looked through.
    """
    siblings = list(siblings)
    word = key.lstrip("-").replace("-", "_").lower()
    if word in siblings:
        return f"did you mean '{word}'?"
    if word in EXPLAINED:
        return EXPLAINED[word]
    if word in FOREIGN:
        return _point_to(FOREIGN[word], section)
    if (flag := word.replace("_", "-")) in flag_names():
        return f"a launch flag of vLLM: write --{flag} in {'' if section else 'backends.NAME.'}launch.command"
    if near := closest(word, siblings):
        return f"did you mean '{near}'?"
    if places := [path for path in elsewhere if path.rpartition(".")[2] == word]:
        return f"it belongs under {places[0].rpartition('.')[0] or 'the top level'}"
    if near := closest(word, FOREIGN, _VERY_NEAR):
        return _point_to(FOREIGN[near], section)
    return "allowed here: " + ", ".join(siblings) if siblings else None


def _point_to(target: str, section: str) -> str:
    parent, _, name = target.rpartition(".")
    if parent == section:
        return f"did you mean '{name}'?"
    if section and target.startswith(section + "."):
        return f"did you mean '{target.removeprefix(section + '.')}'?"
    return f"here that is {target}"
