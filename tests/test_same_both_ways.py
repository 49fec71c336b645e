"""The same text gives the same answer, streamed or in one piece, however the stream is cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.request import CHAT, parse
from gateway.inspection.notation import formats_for
from gateway.inspection.policy import Expected, LateTools
from gateway.inspection.reasoning import THINK
from gateway.inspection.rewrite import Identity
from gateway.inspection.stream_track import StreamTrack
from gateway.inspection.whole import read_whole

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("get_weather", "now")
]
ASKED = parse(CHAT, json.dumps({"model": "alias", "stream": True, "messages": [], "tools": TOOLS}).encode())
FRAGMENTS = st.sampled_from(
    [
        "<think>", "hm", "</think>", "\n", "\n\n", "Hello, ", "wörld", "`", "```\n", '"', "\\", "a < b",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        '<tool_call>{"name": "rm_rf", "arguments": {}}</tool_call>', "<tool_call>", "</tool_call>",
        "<tool_call>\n<function=now>\n</function>\n</tool_call>", "<function=now>", "😀",
    ]
)  # fmt: skip
texts = st.lists(FRAGMENTS, max_size=10).map("".join)


def expected() -> Expected:
    return Expected(LateTools(bytes(ASKED.fields["tools"])), formats_for("Qwen/Qwen3-8B", "hermes"), THINK)


def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "served", "choices": [choice]}
    return b"data: " + json.dumps(head, separators=(",", ":")).encode() + b"\n\n"


def streamed(pieces: list[str]) -> tuple[StreamTrack, dict[str, Any]]:
    track = StreamTrack(ASKED, Identity(), expected())
    out = b"".join(
        track.take([e])
        for e in [
            event({"role": "assistant", "content": ""}),
            *(event({"content": p}) for p in pieces),
            event({}, "stop"),
        ]
    )
    track.conclude()
    said: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish": None}
    for one in (out + track.release_held()).split(b"\n\n")[:-1]:
        [choice] = msgspec.json.decode(one.removeprefix(b"data: "))["choices"]
        take(said, choice["delta"], choice["finish_reason"])
    return track, said


def take(said: dict[str, Any], part: dict[str, Any], finish: object) -> None:
    said["content"] += part.get("content") or ""
    said["reasoning"] += part.get("reasoning") or ""
    said["calls"] += [call["function"] for call in part.get("tool_calls") or ()]
    said["finish"] = finish or said["finish"]


@given(texts, st.lists(st.integers(0, 400), max_size=30))
def test_a_text_is_read_the_same_both_ways(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(c for c in cuts if c < len(text)), len(text)]
    track, stream = streamed([text[a:b] for a, b in pairwise(places) if text[a:b]])
    message = {"role": "assistant", "content": text}
    body = {"model": "served", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    answer = read_whole(json.dumps(body).encode(), ASKED, expected())
    [choice] = json.loads(answer.body)["choices"]
    whole: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish": None}
    take(whole, choice["message"], choice["finish_reason"])
    if answer.stray_close:
        return  # told in time only where the whole text is there
    assert stream == whole
    assert track.mended == answer.mended
    assert track.empty == answer.empty


@given(texts, st.integers(1, 7))
def test_every_character_is_accounted_for(text: str, size: int) -> None:
    track, said = streamed([text[i : i + size] for i in range(0, len(text), size)])
    if not track.mended and not text.lstrip().startswith("<think>"):  # (an opener with nothing after it says nothing)
        assert said["content"] == text
        assert said["calls"] == []
