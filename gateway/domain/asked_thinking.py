"""The fields by which clients ask for thinking, or against it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

THINKING_SWITCHES = ("enable_thinking", "thinking")  # of chat_template_kwargs, as clients know them


class AskedThinking(NamedTuple):
    """`wish`: a wish, not a demand."""

    on: bool
    wish: bool = False


def _by_think(think: Any) -> AskedThinking | None:
    """Ollama's field: true, false, or a level, which is a wish."""
    if isinstance(think, bool):
        return AskedThinking(think)
    return AskedThinking(think != "none", wish=True) if isinstance(think, str) else None


def _by_template_kwargs(switches: Any) -> AskedThinking | None:
    found = [switches.get(name) for name in THINKING_SWITCHES] if isinstance(switches, dict) else []
    return next((AskedThinking(value) for value in found if isinstance(value, bool)), None)


def _by_thinking(thinking: Any) -> AskedThinking | None:
    """Anthropic's field."""
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if kind in ("enabled", "disabled"):
        return AskedThinking(kind == "enabled")
    return AskedThinking(True, wish=True) if kind == "adaptive" else None


def _by_effort(effort: Any) -> AskedThinking | None:
    if isinstance(effort, dict):  # `reasoning` of the Responses API and of OpenRouter
        effort = effort.get("effort")
    return AskedThinking(effort != "none", wish=True) if isinstance(effort, str) else None


# Field -> what its value asks for. The first field counts, except that a demand overrides a wish.
THINKING_FIELDS: Mapping[str, Callable[[Any], AskedThinking | None]] = MappingProxyType(
    {
        "think": _by_think,
        "chat_template_kwargs": _by_template_kwargs,
        "thinking": _by_thinking,
        "reasoning_effort": _by_effort,
        "reasoning": _by_effort,
    }
)
