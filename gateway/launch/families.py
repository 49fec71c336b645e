"""What a model's name implies: parsers, thinking, and the switch that turns thinking on and off.

The rows come from operators' setups and vLLM's documentation; a name that matches no row is not known. The first
matching row wins, so specific rows stand before general ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

Thinking = Literal["optional", "always", "never"]
Enforced = Literal["envelope", "schema", "nothing"]


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """`tool_parser`, `reasoning_parser`: vLLM's names; `older_tool_parsers`: names of the parser for the same models in
    other builds. `switch`: the key of chat_template_kwargs that turns thinking on and off. `efforts`: those that its
    template knows; None = any, or not known."""

    name: str
    tool_parser: str | None
    older_tool_parsers: tuple[str, ...] = ()
    reasoning_parser: str | None = None
    thinking: Thinking = "never"
    thinks_by_default: bool = False
    switch: str | None = None
    efforts: tuple[str, ...] | None = None


def _never(name: str, tool_parser: str | None, *older: str) -> ModelFamily:
    return ModelFamily(name, tool_parser, older)


def _always(name: str, tool_parser: str | None, reasoning_parser: str | None, *older: str) -> ModelFamily:
    return ModelFamily(name, tool_parser, older, reasoning_parser, "always", True)


def _on(
    name: str, tool: str | None, reasoning: str | None, *older: str, switch: str = "enable_thinking"
) -> ModelFamily:
    """Thinks unless the request turns thinking off."""
    return ModelFamily(name, tool, older, reasoning, "optional", True, switch)


def _off(
    name: str, tool: str | None, reasoning: str | None, *older: str, switch: str = "enable_thinking"
) -> ModelFamily:
    """Thinks only when the request turns thinking on."""
    return ModelFamily(name, tool, older, reasoning, "optional", False, switch)


_NOT_CHAT = re.compile(r"embed|rerank|whisper|[-_](asr|tts|reward)\b")

# Expressions over the name as `_normalised_name` makes it: small letters, "-" between words, "." in versions.
_ROWS: tuple[tuple[str, ModelFamily], ...] = (
    (r"deepseek-?r1.*(distill|qwen|llama)", _always("DeepSeek-R1-Distill", None, "deepseek_r1")),
    (r"deepseek-?r1", _always("DeepSeek-R1", "deepseek_v3", "deepseek_r1")),
    (r"deepseek-?v4\.1", _off("DeepSeek-V4.1", "deepseek_v41", "deepseek_v41", switch="thinking")),
    (r"deepseek-?v4", _off("DeepSeek-V4", "deepseek_v4", "deepseek_v4", switch="thinking")),
    (r"deepseek-?v3\.2.*speciale", _always("DeepSeek-V3.2-Speciale", None, "deepseek_r1")),
    (r"deepseek-?v3\.2", _off("DeepSeek-V3.2", "deepseek_v32", "deepseek_v3", switch="thinking")),
    (r"deepseek-?v3\.1", _off("DeepSeek-V3.1", "deepseek_v31", "deepseek_v3", switch="thinking")),
    (r"deepseek-?v3", _never("DeepSeek-V3", "deepseek_v3")),
    (r"qwen3-?coder-?next", _never("Qwen3-Coder-Next", "qwen3_coder", "qwen3_xml")),
    (r"qwen3-?coder", _never("Qwen3-Coder", "qwen3_coder", "qwen3_xml")),
    (r"qwen3\.?8", replace(_on("Qwen3.8", "qwen3_xml", "qwen3", "qwen3_coder"), efforts=("low", "medium", "xhigh"))),
    (r"qwen3\.?6", _on("Qwen3.6", "qwen3_xml", "qwen3", "qwen3_coder")),
    (r"qwen3\.?5(?!\d)", _on("Qwen3.5", "qwen3_coder", "qwen3", "qwen3_xml")),
    (r"qwen3-?next.*thinking", _always("Qwen3-Next-Thinking", "hermes", "qwen3")),
    (r"qwen3-?next", _never("Qwen3-Next-Instruct", "hermes")),
    (r"qwen3.*thinking", _always("Qwen3-Thinking", "hermes", "qwen3")),
    (r"qwen3.*(instruct|2507)", _never("Qwen3-Instruct", "hermes")),
    (r"qwen3(?!\d)", _on("Qwen3", "hermes", "qwen3")),
    (r"qwq", _always("QwQ", "hermes", "deepseek_r1")),
    (r"qwen2", _never("Qwen2", "hermes")),
    (r"function-?gemma", _never("FunctionGemma", "functiongemma")),
    (r"gemma-?4.*coder", _off("Gemma-4-coder", None, None)),
    (r"gemma-?4-26b", _off("Gemma-4-26B-A4B", "pythonic", "gemma4", "gemma4")),
    (r"gemma-?4", _off("Gemma-4", "gemma4", "gemma4", "pythonic")),
    (r"gemma", _never("Gemma", None)),
    (r"nemotron-?(nano-?3|3-?nano).*omni", _on("Nemotron-3-Nano-Omni", "qwen3_coder", "nemotron_v3")),
    (r"nemotron-?(nano-?3|3-?nano)", _on("Nemotron-3-Nano", "qwen3_coder", "nano_v3")),
    (r"nemotron-?3", _on("Nemotron-3", "qwen3_coder", "nemotron_v3")),
    (r"glm-?(4\.?7|5)", _on("GLM-4.7", "glm47", "glm45")),
    (r"glm-?4\.?[56]", _on("GLM-4.5", "glm45", "glm45")),
    (r"kimi-?k2.*thinking", _always("Kimi-K2-Thinking", "kimi_k2", "kimi_k2")),
    (r"kimi-?k2\.\d", _on("Kimi-K2.5", "kimi_k2", "kimi_k2", switch="thinking")),
    (r"kimi-?k2", _never("Kimi-K2", "kimi_k2")),
    (r"minimax-?m3", _always("MiniMax-M3", "minimax_m3", "minimax_m3")),
    (r"minimax-?m2", _always("MiniMax-M2", "minimax_m2", "minimax_m2")),
    (r"magistral", _always("Magistral", "mistral", "mistral")),
    (r"ministral.*reasoning", _always("Ministral-Reasoning", "mistral", "mistral")),
    (r"(mi(ni)?|dev|code?|mix)stral|mixtral|pixtral", _never("Mistral", "mistral")),
    (r"hermes-?4", _off("Hermes-4", "hermes", "deepseek_r1", switch="thinking")),
    (r"hermes-?[23]", _never("Hermes", "hermes")),
    (r"llama-?4", _never("Llama-4", "llama4_pythonic", "llama4_json")),
    (r"llama-?3", _never("Llama-3", "llama3_json", "pythonic")),
    (r"phi-?4.*reasoning", _always("Phi-4-reasoning", None, "deepseek_r1")),
    (r"phi-?4-?mini", _never("Phi-4-mini", "phi4_mini_json")),
    (r"gpt-?oss", replace(_always("gpt-oss", "openai", "openai_gptoss"), efforts=("low", "medium", "high"))),
    (r"laguna", _on("Laguna", "poolside_v1", "poolside_v1")),
    (r"seed-?oss", _on("Seed-OSS", "seed_oss", "seed_oss", switch="thinking_budget")),
    (r"step-?3\.5", _always("Step-3.5", "step3p5", "step3p5")),
    (r"step-?3(?![.\d])", _always("Step-3", "step3", "step3")),
    (r"mimo", _on("MiMo", "mimo", "mimo")),
    (r"granite-?3\.[23]", _off("Granite-3.3", "granite", "granite", switch="thinking")),
    (r"hunyuan-?a13b", _on("Hunyuan-A13B", "hunyuan_a13b", "hunyuan_a13b")),
    (r"granite-?4", _never("Granite-4", "granite4", "hermes")),
    (r"smollm3", _on("SmolLM3", "hermes", "qwen3")),
    (r"longcat", _never("LongCat", "longcat")),
)
_TABLE = tuple((re.compile(r"(?:^|[^a-z])" + pattern), family) for pattern, family in _ROWS)

_SEEING = frozenset(
    ("Qwen3.6", "Qwen3.5", "Gemma-4", "Gemma-4-26B-A4B", "Nemotron-3-Nano-Omni", "Llama-4", "Kimi-K2.5")
)
_TEXT_ONLY = frozenset(
    (
        "DeepSeek-R1", "DeepSeek-R1-Distill", "DeepSeek-V3", "DeepSeek-V3.1", "DeepSeek-V3.2", "DeepSeek-V4",
        "Qwen3-Coder-Next", "Qwen3-Coder", "Qwen3-Next-Thinking", "Qwen3-Next-Instruct", "Qwen3-Thinking",
        "Qwen3-Instruct", "Qwen3", "QwQ", "Nemotron-3-Nano", "MiniMax-M2", "gpt-oss", "Laguna", "Phi-4-mini",
    )
)  # fmt: skip
_EYES = re.compile(r"(^|[-.])(vl|vlm|v|vision|omni|ocr|visual|multimodal)([-.]|$)")

FAMILIES = tuple(family for _, family in _ROWS)
"""All families, in the order in which names are matched."""

ENFORCES: Mapping[str, Enforced] = MappingProxyType(
    {
        **dict.fromkeys(("hermes", "qwen3_coder", "qwen3_xml", "glm45", "kimi_k2", "llama3_json"), "envelope"),
        **dict.fromkeys(("deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4"), "envelope"),
        **dict.fromkeys(("minimax_m2", "openai"), "envelope"),
        **dict.fromkeys(("pythonic", "phi4_mini_json", "granite", "seed_oss"), "schema"),
        **dict.fromkeys(("gemma4", "poolside_v1"), "nothing"),
    }
)
"""`--tool-call-parser` -> what `tool_choice` required or named enforces on vLLM 0.32: the shape of a call and its name
(envelope), its arguments' schema too (schema), or nothing. Parsers that were not tested are missing."""

SWITCH_VALUES: Mapping[str, tuple[object, object]] = MappingProxyType({"thinking_budget": (-1, 0)})
"""Switch -> its values for on and off, where these are not true and false."""


@lru_cache(maxsize=512)
def family_of(model: str | None) -> ModelFamily | None:
    """The family of a model by its name, however it is written: `RedHatAI/Qwen3.6-35B-A3B-NVFP4`, `qwen3:8b`,
    `accounts/fireworks/models/deepseek-v3p1`. None if not known."""
    if not model:
        return None
    name = _normalised_name(model)
    if _NOT_CHAT.search(name):
        return None
    return next((family for pattern, family in _TABLE if pattern.search(name)), None)


@lru_cache(maxsize=512)
def takes_images(model: str | None) -> bool | None:
    """Whether the models of this family take images; None if not known, e.g. of names like Qwen3-VL that a text family
    has too."""
    family = family_of(model)
    if family is None or model is None or _EYES.search(_normalised_name(model)):
        return None if family is None or family.name not in _SEEING else True
    return True if family.name in _SEEING else False if family.name in _TEXT_ONLY else None


def _normalised_name(model: str) -> str:
    name = model.rstrip("/").rsplit("/", 1)[-1].lower()
    name = re.sub(r"(?<=\d)p(?=\d)", ".", name)  # v3p1, as some clouds write it
    return re.sub(r"[_:\s]+", "-", name)


# Formats whose markers are special tokens of their models, and parsers (vLLM 0.32) that remove such tokens.
_SPECIAL_MARKS = frozenset(("gemma4", "functiongemma", "mistral", "kimi_k2"))
_UNMARKING = frozenset(("pythonic", "llama3_json", "deepseek_v3", "deepseek_v31", "phi4_mini_json"))


@lru_cache(maxsize=512)
def loses_marks(model: str | None, tool_parser: str | None, reasoning_parser: str | None, *, tools: bool) -> bool:
    """Would this vLLM drop the markers of calls or thoughts from the text, so that nothing could be mended? Then the
    request must ask for special tokens. A parser that fits the model asks for them itself."""
    family = family_of(model)
    if family is None:
        return False
    if tools and tool_parser in _UNMARKING:
        return not _SPECIAL_MARKS.isdisjoint((family.tool_parser, *family.older_tool_parsers))
    return reasoning_parser == "none" and tool_parser in (None, "none") and family.reasoning_parser in _SPECIAL_MARKS
