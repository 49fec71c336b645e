"""Libraries that write agents, one loop with a tool. usage: with_agents.py BASE_URL KEY KIND; prints {text, calls}."""

from __future__ import annotations

import json
import sys
from typing import Any

URL, KEY, KIND = sys.argv[1:]
QUESTION = "What is the weather in Oslo?"
calls: list[str] = []


def get_weather(city: str) -> str:
    """The weather in a city."""
    calls.append(city)
    return "sunny, 42000 lux"


def pydantic_ai(kind: str) -> str:
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    model: Any
    if kind == "messages":
        model = AnthropicModel(
            "spark-qwen36", provider=AnthropicProvider(api_key=KEY, base_url=URL.removesuffix("/v1"))
        )
    else:
        made = OpenAIChatModel if kind == "chat" else OpenAIResponsesModel
        model = made("spark-qwen36", provider=OpenAIProvider(base_url=URL, api_key=KEY))
    agent = Agent(model)
    agent.tool_plain(get_weather)
    return str(agent.run_sync(QUESTION).output)


def openai_agents(kind: str) -> str:
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(disabled=True)
    made = OpenAIChatCompletionsModel if kind == "chat" else OpenAIResponsesModel
    model = made(model="spark-qwen36", openai_client=AsyncOpenAI(base_url=URL, api_key=KEY))
    agent = Agent(name="weather", model=model, tools=[function_tool(get_weather)])
    return str(Runner.run_sync(agent, QUESTION).final_output)


library, _, way = KIND.partition(":")
text = {"pydantic-ai": pydantic_ai, "openai-agents": openai_agents}[library](way)
print(json.dumps({"text": text, "calls": calls}))
