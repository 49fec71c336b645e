"""A request that runs on what was decided comes to what it comes to without: what the client gets, what the backends
get, what is counted and logged."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.accounting.record import RequestLine
from gateway.http.request_head import RepeatedHead
from gateway.inspection.inspector import Inspector
from gateway.inspection.stream_track import StreamTrack
from gateway.proxy.decisions import Decision, Decisions
from gateway.proxy.stages import Planner
from gateway.proxy.stream_relay import StreamRelay
from gateway.transport.h1_response import H1Response, KnownHead
from tests.scripted import SSE_HEAD, Script, ScriptedBackend, Turn, chunked, json_answer
from tests.support import RunningGateway, running_gateway

ROUTES = """
defaults: {{health: {{every: 1h}}}}
backends:
  a: {{url: "{a}", slots: 4, tool_parser: hermes}}
  b: {{url: "{b}", slots: 4, tool_parser: hermes}}
  bare: {{url: "{b}", slots: 4}}
aliases:
  one: [a]
  chain: [a, b]
  pair: {{use: [[a, b]], on_unsupported: mend}}
  turns: {{use: [[a, b]], balance: round_robin, params: {{temperature: 0.5, max_tokens: 40}}}}
  switched: {{use: [[a, b]], balance: least_busy, params: {{chat_template_kwargs: {{a: 1}}, mirostat: {{tau: 5}}}}}}
  mended: {{use: [[bare, a]], on_unsupported: mend}}
clients:
  agent: {{key: k-agent-long-enough, rpm: 1000, tpm: 1000000}}
  few: {{key: k-few-long-enough, tpm: 4000}}
  other: {{key: k-other-long-enough, aliases: [one, pair, turns, switched], max_inflight: 3}}
"""
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
USAGE = {"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20}

# What a backend says: the deltas of its answer, and its finish_reason.
SAID: dict[str, tuple[list[dict[str, Any]], str]] = {
    "text": ([{"content": "Twelve "}, {"content": "of "}, {"content": "them, größer."}], "stop"),
    "short": ([{"content": "No"}], "stop"),
    "cut off": ([{"content": "And so"}, {"content": " on"}], "length"),
    "quotes": ([{"content": 'He said "no",\n\\ and left'}, {"content": '"'}], "stop"),
    "blank": ([{"content": " "}, {"content": "\n"}], "stop"),
    "nothing": ([], "stop"),
    "call": ([{"tool_calls": [CALL]}], "tool_calls"),
    "leaked": ([{"content": "So: <tool_c"}, {"content": 'all>{"name": "look", "arguments": {}}</tool_call>'}], "stop"),
    "thoughts": ([{"content": "<think>Hm"}, {"content": "</think>"}, {"content": "Yes"}], "stop"),
    "reasoned": ([{"reasoning": "Hm"}, {"content": "Yes"}], "stop"),
    "thoughts alone": ([{"reasoning": "Hm"}], "stop"),
    "garbage": ([{"content": "!!!!!!!!"}, {"content": "!!!!"}], "stop"),
    "failed": ([{"content": "On"}], "error"),
}
FAULTS = ("crash", "refusal", "no json", "ends early", "error event", "bad usage", "two models")


def answering(name: str) -> Script:
    """A script that answers as `SAID` has it, or with a fault."""

    async def script(turn: Turn) -> None:
        fault = "" if name in SAID or is_probe(turn) else name
        deltas, end = SAID["text" if fault or is_probe(turn) else name]
        usage = {**USAGE, "prompt_tokens": 10**12} if fault == "bad usage" else USAGE
        if fault == "crash":
            await turn.send(json_answer({"error": {"message": "CUDA error"}}, "500 Internal Server Error"))
        elif fault == "refusal":
            await turn.send(json_answer({"error": {"message": "too hot", "param": "temperature"}}, "400 Bad Request"))
        elif turn.json.get("stream"):
            await stream(turn, fault, deltas, end, usage)
        else:
            await whole(turn, fault, deltas, end, usage)

    return script


def is_probe(turn: Turn) -> bool:
    return turn.headers["x-request-id"].startswith("probe-")


async def stream(turn: Turn, fault: str, deltas: list[dict[str, Any]], end: str, usage: dict[str, int]) -> None:
    number = int(re.sub(r"\D", "", turn.json["messages"][0]["content"]) or 0)
    events = [chunk({"role": "assistant", "content": ""}), *map(chunk, deltas)]
    if fault == "no json":
        events.insert(2, b"data: {nonsense\n\n")
    elif fault == "error event":
        events.insert(2, b'data: {"error": {"message": "EngineCore died"}}\n\n')
    elif fault == "two models":
        events[2] = events[2].replace(b"served/model", b"served/other")
    if fault != "ends early":
        events += [chunk({"content": ""}, end), chunk(None, None, usage), b"data: [DONE]\n\n"]
    events = [event.replace(b'"up-1"', b'"up-%d"' % number).replace(b":2,", b":%d," % (2 + number)) for event in events]
    await turn.send(SSE_HEAD)
    if number % 2:
        await turn.send(chunked(*events) + b"0\r\n\r\n")
        return
    for event in events:  # each may arrive alone, or with others
        await turn.send(chunked(event))
    await turn.send(b"0\r\n\r\n")


def chunk(delta: dict[str, Any] | None, end: str | None = None, usage: dict[str, int] | None = None) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}]
    told = {} if usage is None else {"usage": usage}
    fields = {"id": "up-1", "object": "chat.completion.chunk", "created": 2, "model": "served/model"}
    return b"data: " + json.dumps({**fields, "choices": choices, **told}, separators=(",", ":")).encode() + b"\n\n"


async def whole(turn: Turn, fault: str, deltas: list[dict[str, Any]], end: str, usage: dict[str, int]) -> None:
    if fault == "no json":
        await turn.send(json_answer("nonsense"))
        return
    message: dict[str, Any] = {"role": "assistant", "content": "".join(d.get("content", "") for d in deltas) or None}
    for delta in deltas:
        message |= {key: value for key, value in delta.items() if key != "content"}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": end}
    body = {"id": "up-1", "object": "chat.completion", "created": 2, "model": "served/model", "choices": [choice]}
    if fault == "error event":
        body = {"error": {"message": "EngineCore died"}}
    answer = json_answer({**body, "usage": usage})
    await turn.send(answer[:-9] if fault == "ends early" else answer)
    if fault == "ends early":
        turn.close()


# -- on what was decided, and decided anew -----------------------------------------------------------------------------


def _to_the_task(relay: StreamRelay, data: bytes) -> bool:
    relay._read(relay._framer.feed(data))
    return False


@contextmanager
def everything_anew() -> Iterator[None]:
    """Nothing is recognised as like something before."""
    anew: list[tuple[type, str, Any]] = [
        (Decisions, "find", lambda _decisions, _snapshot, _fields: None),
        (RepeatedHead, "match", lambda _head, _raw: None),
        (RepeatedHead, "body_of", lambda _head, _data: None),
        (KnownHead, "body_of", lambda _head, _data: None),
        (Planner, "first_choice", lambda _planner: None),
        (Inspector, "note_plain", lambda _inspector, _message, _finish: False),
        (Inspector, "inspect_plain", lambda _inspector, _choice: None),
        (StreamTrack, "_look_ahead", lambda _track, _event, _choice, *, changed=False: None),
        (StreamRelay, "pass_on", _to_the_task),
        (H1Response, "read_past", None),
    ]
    with ExitStack() as stack:
        for owner, name, replaced in anew:
            stack.enter_context(patch.object(owner, name, replaced))
        stack.enter_context(patch.object(Decisions, "add", lambda *_: None))
        yield


Ask = tuple[str, dict[str, Any], str, str, str]  # alias, further fields (and path), client, what a says, what b says

fields = st.fixed_dictionaries(
    {"stream": st.booleans()},
    optional={
        "tools": st.just(TOOLS),
        "tool_choice": st.sampled_from(["auto", "required", {"type": "function", "function": {"name": "look"}}]),
        "max_tokens": st.sampled_from([8, 64, 10**7]),
        "user": st.sampled_from(["x", "yy"]),
        "stream_options": st.just({"include_usage": True}),
        "reasoning_effort": st.sampled_from(["none", "high"]),
        "n": st.just(1),
        "temperature": st.sampled_from([0.1, 0.9]),
        "mirostat": st.sampled_from([{"eta": 1}, {"tau": 9}]),
        "priority": st.sampled_from([None, 3]),
        "stop": st.sampled_from(["end", ["a", "b"], ["x" * 300]]),
        "path": st.sampled_from(["/v1/messages", "/v1/chat/completions?beta=true"]),
    },
)
says = st.sampled_from([*SAID, *SAID, *FAULTS])
asks = st.tuples(
    st.sampled_from(["one", "chain", "pair", "turns", "mended", "switched"]),
    fields,
    st.sampled_from(["agent", "other", "few"]),
    says,
    says,
)


def timeless(line: RequestLine) -> RequestLine:
    """The line without what differs from run to run: its id and all times."""
    error = re.sub(r"\d+ s\b", "N s", line.error.replace(line.id, "ID"))
    skipped = [(name, re.sub(r"\d[\d.]* ", "N ", reason)) for name, reason in line.skipped]
    never = {"at": 0.0, "id": "", "queued": 0.0, "total": 0.0, "first_token": None}
    return replace(line, **never, adapted=list(line.adapted), error=error, skipped=skipped)


async def outcome(asked: list[Ask]) -> list[object]:
    """What all parties see of these requests, one after the other."""
    found: list[object] = []
    lines: list[RequestLine] = []
    a, b = ScriptedBackend(()), ScriptedBackend(())
    async with a.serve(), b.serve(), running_gateway(ROUTES.format(a=a.url, b=b.url)) as gateway:
        await gateway.until_ready("a", "b", "bare")
        gateway.gateway.services.line_observers.append(lines.append)
        # Again, when it is known; then all at once otherwise: what is known is answered with something else.
        others = [(*one[:3], *other[3:]) for one, other in zip(asked, [*asked[1:], asked[0]], strict=True)]
        for number, (alias, more, client, a_says, b_says) in enumerate([*asked * 3, *others]):
            a.play(answering(a_says))
            b.play(answering(b_says))
            messages = [{"role": "user", "content": f"What of {number * 7 % 10}?"}]
            found.append(await answer(gateway, {"model": alias, "messages": messages, **more}, client))
            await gateway.until(gateway.idle)
            await gateway.until(lambda: not gateway.gateway.services.prober.suspicion.busy)
            await gateway.until_ready("a", "b", "bare")  # one that failed is probed, and found well
            turns = [(name, turn) for name, one in (("a", a), ("b", b)) for turn in one.turns if not is_probe(turn)]
            found += [(name, turn.path, turn.json) for name, turn in turns]
        found += map(timeless, lines)
        found += counted(gateway)
    return found


async def answer(gateway: RunningGateway, body: dict[str, Any], client: str) -> tuple[object, ...]:
    headers = {"authorization": f"Bearer k-{client}-long-enough"}
    got = b""
    path, body = body.get("path", "/v1/chat/completions"), {k: v for k, v in body.items() if k != "path"}
    try:
        async with gateway.client.stream("POST", path, json=body, headers=headers) as response:
            async for piece in response.aiter_raw():
                got += piece
    except httpx.HTTPError as error:
        got += type(error).__name__.encode()
    unlike = ("date", "x-request-id", "request-id", "x-gateway-queue-ms", "retry-after")
    told = [(name, value) for name, value in response.headers.multi_items() if name not in unlike]
    got = got.replace(response.headers["x-request-id"].encode(), b"ID")
    got = re.sub(rb'"id":"msg_[0-9a-f]{32}"', b"", got)
    got = re.sub(rb"ask again in \d+ s", b"ask again", re.sub(rb"call_[0-9a-f]{24}", b"call_ID", got))
    return response.status_code, told, got


def counted(gateway: RunningGateway) -> list[tuple[str, list[tuple[str, str]], float]]:
    """All counters, except those of time."""
    samples = [sample for family in gateway.gateway.metrics.registry.collect() for sample in family.samples]
    unlike = re.compile("process_|python_|.*(_seconds_(?!count)|_created$|_bucket$|_sum$)")
    return sorted((one.name, sorted(one.labels.items()), one.value) for one in samples if not unlike.match(one.name))


@settings(max_examples=25)  # each starts two gateways
@given(st.lists(asks, min_size=2, max_size=4))
def test_what_was_decided_comes_to_what_is_decided_anew(asked: list[Ask]) -> None:
    kept = asyncio.run(outcome(asked))
    with everything_anew():
        anew = asyncio.run(outcome(asked))
    assert kept == anew


async def test_usual_requests_run_on_what_was_decided() -> None:
    """So that the comparison above compares something."""
    with patch.object(Decision, "backend_for", autospec=True, side_effect=Decision.backend_for) as decided:
        for fields in ({}, {"stream": True}, {"tools": TOOLS}, {"tools": TOOLS, "stream": True, "max_tokens": 9}):
            decided.reset_mock()
            asked: list[Ask] = [("pair", fields, "other", "text", "text")] * 3
            found = await outcome(asked)
            assert [one[0] for one in found if isinstance(one, tuple) and one[0] == 200] == [200] * 12
            assert decided.call_count >= 11, "all but the first with its head"
