"""Request bodies for the scripted model."""

from __future__ import annotations

from typing import Any

CHAT = "/v1/chat/completions"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s"}}\n</tool_call>'


def script(text: str, **further: Any) -> dict[str, Any]:
    """The request field that makes the model emit exactly this raw text."""
    return {"vllm_xargs": {"script": text, **further}}


def chat(said: str = "hi", *, model: str = "front", **further: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": said}], **further}


def long_chat(tokens: int = 1900, *, model: str = "front", **further: Any) -> dict[str, Any]:
    """An answer of exactly so many tokens, at random: some 300 to 900 a second."""
    return chat(model=model, max_tokens=tokens, min_tokens=tokens, ignore_eos=True, **further)
