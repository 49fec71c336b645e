"""What a model's name tells: the table that operators of these models filled in, however the name is written."""

from __future__ import annotations

import pytest

from gateway.config.suggest import REASONING_PARSERS, TOOL_PARSERS
from gateway.launch.families import ENFORCES, FAMILIES, family_of, loses_marks, name_in_cache, takes_images

# name -> (tool parser, reasoning parser, thinking, thinks by default, switch)
FIELD = {
    "Qwen/Qwen3-4B-Instruct-2507": ("hermes", None, "never", False, None),
    "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8": ("hermes", None, "never", False, None),
    "Qwen/Qwen3-Next-80B-A3B-Thinking-FP8": ("hermes", "qwen3", "always", True, None),
    "Qwen/Qwen3-235B-A22B-Thinking-2507": ("hermes", "qwen3", "always", True, None),
    "qwen3:8b": ("hermes", "qwen3", "optional", True, "enable_thinking"),
    "RedHatAI/Qwen3.6-35B-A3B-NVFP4": ("qwen3_xml", "qwen3", "optional", True, "enable_thinking"),
    "Qwen3.6-27B": ("qwen3_xml", "qwen3", "optional", True, "enable_thinking"),
    "Qwen/Qwen3.5-122B-A10B": ("qwen3_coder", "qwen3", "optional", True, "enable_thinking"),
    "unsloth/Qwen3-Coder-Next-GGUF:Q4_K_M": ("qwen3_coder", None, "never", False, None),
    "qwen3-coder:30b": ("qwen3_coder", None, "never", False, None),
    "google/gemma-4-31B-it": ("gemma4", "gemma4", "optional", False, "enable_thinking"),
    "google/gemma-4-26B-A4B-it": ("gemma4", "gemma4", "optional", False, "enable_thinking"),
    "gemma-4-12B-coder": (None, None, "optional", False, "enable_thinking"),
    "google/functiongemma-270m-it": ("functiongemma", None, "never", False, None),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8": ("qwen3_coder", "nano_v3", "optional", True, "enable_thinking"),
    "Nemotron-3-Nano-Omni": ("qwen3_coder", "nemotron_v3", "optional", True, "enable_thinking"),
    "deepseek-ai/DeepSeek-V4-Flash": ("deepseek_v4", "deepseek_v4", "optional", False, "thinking"),
    "accounts/fireworks/models/deepseek-v4-flash": ("deepseek_v4", "deepseek_v4", "optional", False, "thinking"),
    "accounts/fireworks/models/deepseek-v3p1": ("deepseek_v31", "deepseek_v3", "optional", False, "thinking"),
    "deepseek-ai/DeepSeek-V3.2": ("deepseek_v32", "deepseek_v3", "optional", False, "thinking"),
    "deepseek-ai/DeepSeek-V3-0324": ("deepseek_v3", None, "never", False, None),
    "DeepSeek-R1-Distill-Qwen-32B": (None, "deepseek_r1", "always", True, None),
    "zai-org/GLM-4.5-Air-FP8": ("glm45", "glm45", "optional", True, "enable_thinking"),
    "zai-org/GLM-4.7-Flash": ("glm47", "glm45", "optional", True, "enable_thinking"),
    "moonshotai/Kimi-K2-Instruct-0905": ("kimi_k2", None, "never", False, None),
    "moonshotai/Kimi-K2-Thinking": ("kimi_k2", "kimi_k2", "always", True, None),
    "MiniMaxAI/MiniMax-M2.1": ("minimax_m2", "minimax_m2", "always", True, None),
    "mistralai/Devstral-Small-2-24B-Instruct-2512": ("mistral", None, "never", False, None),
    "mistral-small3.2:24b": ("mistral", None, "never", False, None),
    "mistralai/Magistral-Small-2509": ("mistral", "mistral", "always", True, None),
    "meta-llama/Llama-3.3-70B-Instruct": ("llama3_json", None, "never", False, None),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": ("llama4_pythonic", None, "never", False, None),
    "microsoft/Phi-4-mini-instruct": ("phi4_mini_json", None, "never", False, None),
    "openai/gpt-oss-120b": ("openai", "openai_gptoss", "always", True, None),
    "poolside/Laguna-XS.2": ("poolside_v1", "poolside_v1", "optional", True, "enable_thinking"),
    "ByteDance-Seed/Seed-OSS-36B-Instruct": ("seed_oss", "seed_oss", "optional", True, "thinking_budget"),
}


@pytest.mark.parametrize("model", FIELD)
def test_a_model_is_known_by_its_name(model: str) -> None:
    family = family_of(model)
    assert family is not None
    told = (family.tool_parser, family.reasoning_parser, family.thinking, family.thinks_by_default, family.switch)
    assert told == FIELD[model]


@pytest.mark.parametrize("model", FIELD)
def test_neither_case_nor_organisation_nor_quantisation_matter(model: str) -> None:
    family = family_of(model)
    bare = model.rsplit("/", 1)[-1]
    for name in (model.upper(), bare, f"someone/{bare.lower()}", f"{bare}-AWQ-4bit", bare.replace("-", "_")):
        assert family_of(name) == family, name


@pytest.mark.parametrize(
    "model",
    [None, "", "m", "anthropic/claude-sonnet-5", "gpt-5", "Qwen3-Embedding-8B", "qwen3-reranker-0.6b", "my-llm"],
)
def test_what_is_not_known_is_not_guessed(model: str | None) -> None:
    assert family_of(model) is None


def test_every_parser_of_the_table_is_one_of_vllms() -> None:
    plugins = {"nano_v3"}
    for family in FAMILIES:
        assert {family.tool_parser, *family.older_tool_parsers} - {None} <= TOOL_PARSERS, family.name
        assert {family.reasoning_parser} - {None} <= REASONING_PARSERS | plugins, family.name
    assert set(ENFORCES) <= TOOL_PARSERS


def test_only_what_can_be_switched_has_a_switch() -> None:
    for family in FAMILIES:
        assert (family.switch is not None) == (family.thinking == "optional"), family.name
        assert family.thinks_by_default or family.thinking != "always", family.name


@pytest.mark.parametrize(
    ("model", "tools", "reasoning", "with_tools", "without"),
    [
        ("google/gemma-4-26B-A4B-it", "pythonic", "gemma4", True, False),
        ("google/gemma-4-26B-A4B-it", "gemma4", "gemma4", False, False),
        ("google/gemma-4-26B-A4B-it", "none", "none", True, True),
        ("google/gemma-4-26B-A4B-it", None, None, False, False),  # nothing is known of its flags
        ("Qwen/Qwen3-8B", "pythonic", "none", False, False),  # its marks are no special tokens
        ("some/model", "pythonic", "none", False, False),
    ],
)
def test_marks_that_a_parser_would_drop_are_asked_for(
    model: str, tools: str | None, reasoning: str | None, with_tools: bool, without: bool
) -> None:
    assert loses_marks(model, tools, reasoning, tools=True) is with_tools
    assert loses_marks(model, tools, reasoning, tools=False) is without


@pytest.mark.parametrize(
    ("model", "images"),
    [
        ("RedHatAI/Qwen3.6-35B-A3B-NVFP4", True),
        ("google/gemma-4-26B-A4B-it", True),
        ("nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-NVFP4", True),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", False),
        ("/models/DeepSeek-V4-Flash", False),
        ("qwen3:8b", False),
        ("Qwen/Qwen3-VL-8B-Instruct", None),
        ("acme/unheard-of", None),
        (None, None),
    ],
)
def test_which_families_take_images(model: str | None, images: bool | None) -> None:
    assert takes_images(model) is images


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/cache/hub/models--Qwen--Qwen3-4B/snapshots/9e16", "Qwen/Qwen3-4B"),
        ("~/.cache/huggingface/hub/models--deepseek-ai--DeepSeek-V4-Flash-0731/", "deepseek-ai/DeepSeek-V4-Flash-0731"),
        ("/models/models--a", "/models/models--a"),
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B"),
    ],
)
def test_a_folder_of_the_cache_tells_the_name(model: str, name: str) -> None:
    assert name_in_cache(model) == name
    assert family_of(model) == family_of(name)
