"""What a model's name implies, as data (families.toml): parsers, thinking, and the switch that turns thinking on and
off. A name that matches no row is not known."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

Thinking = Literal["optional", "always", "never"]
Enforced = Literal["envelope", "schema", "nothing"]


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """`tool_parser`, `reasoning_parser`: vLLM's names; `older_tool_parsers`: names of the parser for the same models in
    other builds. `switch`: the key of chat_template_kwargs that turns thinking on and off. `efforts`: those that its
    template knows; None = any, or not known. `ids`: the alphabet of its calls' ids, where it needs one
    (domain/forms.py). `images`: whether it takes them; None if not known."""

    name: str
    tool_parser: str | None
    older_tool_parsers: tuple[str, ...] = ()
    reasoning_parser: str | None = None
    thinking: Thinking = "never"
    thinks_by_default: bool = False
    switch: str | None = None
    efforts: tuple[str, ...] | None = None
    ids: Literal["kimi"] | None = None
    images: bool | None = None


_NOT_CHAT = re.compile(r"embed|rerank|whisper|[-_](asr|tts|reward)\b")

_DATA = tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))


def _family(
    name: str,
    tools: Sequence[str] = (),
    reasoning: str | None = None,
    thinking: str = "never",
    switch: str = "enable_thinking",
    efforts: Sequence[str] | None = None,
    ids: Literal["kimi"] | None = None,
    images: bool | None = None,
) -> ModelFamily:
    """A row of families.toml."""
    best, *older = tools or (None,)
    optional = thinking in ("on", "off")
    return ModelFamily(
        name,
        best,
        tuple(filter(None, older)),
        reasoning,
        "optional" if optional else "always" if thinking == "always" else "never",
        thinking in ("on", "always"),
        switch if optional else None,
        None if efforts is None else tuple(efforts),
        ids,
        images,
    )


_TABLE = tuple((re.compile(r"(?:^|[^a-z])" + row.pop("match")), _family(**row)) for row in _DATA["families"])

_EYES = re.compile(r"(^|[-.])(vl|vlm|v|vision|omni|ocr|visual|multimodal)([-.]|$)")

FAMILIES = tuple(family for _, family in _TABLE)
"""All families, in the order in which names are matched."""

ENFORCES: Mapping[str, Enforced] = MappingProxyType(
    {parser: what for what, parsers in _DATA["enforces"].items() for parser in parsers}
)
"""`--tool-call-parser` -> what `tool_choice` required or named enforces."""

SWITCH_VALUES: Mapping[str, tuple[object, object]] = MappingProxyType({"thinking_budget": (-1, 0)})
"""Switch -> its values for on and off, where these are not true and false."""


_IN_CACHE = re.compile(r"(?:^|/)models--([^/]+?)--([^/]+)(?:/snapshots/[^/]+)?/?$")


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
    if family is None or model is None:
        return None
    return family.images or (None if _EYES.search(_normalised_name(model)) else family.images)


def name_in_cache(model: str) -> str:
    """The name of a model that is given by its folder in Hugging Face's cache: `Qwen/Qwen3-4B` for
    `/hub/models--Qwen--Qwen3-4B/snapshots/1`; any other name stays."""
    found = _IN_CACHE.search(model)
    return model if found is None else f"{found[1]}/{found[2]}"


def _normalised_name(model: str) -> str:
    name = name_in_cache(model).rstrip("/").rsplit("/", 1)[-1].lower()
    name = re.sub(r"(?<=\d)p(?=\d)", ".", name)  # v3p1, as some clouds write it
    return re.sub(r"[_:\s]+", "-", name)


# Formats whose markers are special tokens of their models, and parsers (vLLM 0.32) that remove such tokens.
_SPECIAL_MARKS = frozenset(("gemma4", "functiongemma", "mistral", "kimi_k2"))
_UNMARKING = frozenset(("pythonic", "llama3_json", "deepseek_v3", "deepseek_v31", "phi4_mini_json"))


@lru_cache(maxsize=512)
def loses_marks(
    model: str | None,
    tool_parser: str | None,
    reasoning_parser: str | None,
    *,
    tools: bool,
    silent: frozenset[str] = frozenset(),
) -> bool:
    """Would this vLLM drop the markers of calls or thoughts from the text, so that nothing could be mended? Then the
    request must ask for special tokens. A parser that fits the model asks for them itself, unless it is a `silent`
    one."""
    family = family_of(model)
    if tools and (tool_parser or (family.tool_parser if family is not None else None)) in silent:
        return True
    if family is None:
        return False
    if tools and tool_parser in _UNMARKING:
        return not _SPECIAL_MARKS.isdisjoint((family.tool_parser, *family.older_tool_parsers))
    return reasoning_parser == "none" and tool_parser in (None, "none") and family.reasoning_parser in _SPECIAL_MARKS
