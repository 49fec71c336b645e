"""What the taught model knows (teach.py), and the openai SDK's arguments for it."""

from __future__ import annotations

from typing import Any

NO_THOUGHTS: Any = {"chat_template_kwargs": {"enable_thinking": False}}
THOUGHTS = "The user asks, so I think a little."
PRODUCT, PRODUCT_SAID = "What is 12*17?", "12*17 is 204."
HELLO, HELLO_SAID = "Say hello.", "Hello! How can I help you today?"
COUNT, COUNT_SAID = "Count to five.", "one two three four five"
SING = "Sing."  # it never ends
WEATHER = "What is the weather in Oslo?"
WEATHER_CALL = ("get_weather", {"city": "Oslo"})
BOTH = "What is the weather in Oslo, and what is it in Rome? Call get_weather for both cities at once."
BOTH_CALLS = [WEATHER_CALL, ("get_weather", {"city": "Rome"})]


def _tool(name: str, description: str) -> Any:
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": city}}


TOOLS = [_tool("get_weather", "The weather in a city now."), _tool("get_time", "The local time in a city now.")]


def user(text: str) -> Any:
    """The messages of one question."""
    return [{"role": "user", "content": text}]
