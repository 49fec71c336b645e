"""The simulated tokenizer: about four bytes per token, deterministic; markers are tokens of their own.

Prompts are counted by bytes (cheap at 200,000 tokens); answers are split into word pieces, because the split is visible
on the wire. `encode` and `decode` are each other's inverse.
"""

from __future__ import annotations

import re

BYTES_PER_TOKEN = 4

MARKERS = (
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<|channel>",
    "<channel|>",
    "<tool_call>",
    "</tool_call>",
    "<|tool_call>",
    "<tool_call|>",
    '<|"|>',
    "[TOOL_CALLS]",
    "[ARGS]",
    "<start_function_call>",
    "<end_function_call>",
    "<escape>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<｜DSML｜tool_calls>",
    "</｜DSML｜tool_calls>",
    "<｜DSML｜function_calls>",
    "</｜DSML｜function_calls>",
    "</｜DSML｜invoke>",
    "</｜DSML｜parameter>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "</invoke>",
    "</function>",
    "</parameter>",
)

_PIECE = re.compile(
    "|".join(re.escape(m) for m in sorted(MARKERS, key=len, reverse=True))
    + r"| ?[A-Za-z]{1,8}| ?[0-9]{1,3}| ?[^\sA-Za-z0-9<\[]{1,2}|[ \t]+|\n|\s|."
)


def pieces(text: str) -> list[str]:
    """The tokens of an answer, in order; joined they are `text` again."""
    return _PIECE.findall(text)


def count(data: bytes) -> int:
    """Tokens of a prompt text."""
    return -(-len(data) // BYTES_PER_TOKEN)


def encode(text: str) -> list[int]:
    """Token ids of `text`: four bytes each, read as a number."""
    data = text.encode()
    return [int.from_bytes(data[i : i + BYTES_PER_TOKEN], "big") for i in range(0, len(data), BYTES_PER_TOKEN)]


def decode(ids: list[int]) -> str:
    """The text of token ids; bytes that are no UTF-8 become U+FFFD."""
    data = b"".join(max(0, i).to_bytes(8, "big").lstrip(b"\0") for i in ids if i < 2**63)
    return data.decode(errors="replace")
