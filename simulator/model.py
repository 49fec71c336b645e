"""The model in a simulated vLLM: the formats that it writes, when it thinks, and the length of prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from simulator import tokens
from simulator.faults import Fault
from simulator.formats import format_of
from simulator.parsers import reasoning_of
from simulator.replies import Voice, raw_reply, text_of, think

Thinking = Literal["optional", "always", "never"]
_IMAGE_TOKENS = 256


def beginning_of(body: Mapping[str, Any]) -> str | None:
    """The beginning of the answer that the request gives as its last message; None = there is none."""
    last = body["messages"][-1]
    if not body.get("continue_final_message") or not isinstance(last, dict):
        return None
    return text_of(last.get("content"))


class Model:
    """`form` and `rules` are what the server parses with, `voice` is how the model writes. Names are those of
    `--tool-call-parser` and `--reasoning-parser`; raises ValueError for a tool parser the simulator does not know."""

    def __init__(
        self,
        name: str,
        tool_parser: str | None,
        reasoning_parser: str | None,
        family: str | None,
        thinking: Thinking | None,
    ) -> None:
        self.form = format_of(tool_parser) if tool_parser else None
        self.rules = reasoning_of(reasoning_parser) if reasoning_parser else None
        self.thinking = thinking or self._thinking_by_parser()
        thoughts = self.rules or reasoning_of("gemma4" if family == "gemma4" else "qwen3")
        own = format_of(family or tool_parser or "hermes")
        self.voice = Voice(name, own, None if self.thinking == "never" else thoughts)

    def _thinking_by_parser(self) -> Thinking:
        if self.rules is None:
            return "never"
        return "optional" if self.rules.switchable else "always"

    def thinks(self, body: Mapping[str, Any]) -> bool:
        """Does the request ask for thinking? (A model that always thinks does so anyway.)"""
        kwargs = body.get("chat_template_kwargs") or {}
        for switch in ("enable_thinking", "thinking"):
            if switch in kwargs:
                return bool(kwargs[switch])
        if body.get("reasoning_effort"):
            return bool(body["reasoning_effort"] != "none")
        return self.voice.thoughts.on_by_default if self.voice.thoughts else self.rules is not None

    def raw(self, body: Mapping[str, Any], thinking: bool, faults: Mapping[str, Fault]) -> str:
        script = (body.get("vllm_xargs") or {}).get("script")
        thinks = self.thinking == "always" or (self.thinking == "optional" and thinking)
        voice = self.voice
        if "leak_think" in faults:
            voice, thinks = replace(voice, thoughts=voice.thoughts or reasoning_of("qwen3")), True
        if "empty_turn" in faults:
            return think("I wonder what to say.", voice) if thinks else ""
        if "wrong_parser" in faults:
            unread = "hermes" if self.form and self.form.unreadable == "silent" else "qwen3_xml"
            voice = replace(voice, family=format_of(unread))
        forced = "leak_tools" in faults or "wrong_parser" in faults
        if not isinstance(script, str):
            return raw_reply(body, voice, thinks, force_call=forced)
        choice = body.get("tool_choice")
        required = self.form is not None and self.form.enforced and (choice == "required" or isinstance(choice, dict))
        if required and self.form is not None and not self.form.read(script, {}):
            return script + raw_reply(body, replace(voice, thoughts=None), False)  # the grammar forces a call
        return script

    def prompt(self, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """(prompt tokens, the bytes that the prefix cache compares)."""
        count = 5 + (4 if not self.thinks(body) and self.rules else 0)
        parts = []
        if body.get("tools"):
            parts.append(json.dumps(body["tools"], separators=(",", ":")).encode())
            count += 60
        begun = beginning_of(body)
        for message in body["messages"] if begun is None else body["messages"][:-1]:
            content = message.get("content") if isinstance(message, dict) else message
            parts.append(text_of(content).encode())
            if isinstance(content, list):
                count += _IMAGE_TOKENS * sum(isinstance(p, dict) and p.get("type") == "image_url" for p in content)
            if isinstance(message, dict) and message.get("tool_calls"):
                parts.append(json.dumps(message["tool_calls"]).encode())
            count += 6
        count += len(tokens.pieces(begun)) if begun else 0
        return count + sum(tokens.count(p) for p in parts), b"\0".join(parts)
