"""The bytes that the mock upstream answers with: vLLM's shapes, made once."""

from __future__ import annotations

import json
from typing import Any

from bench.scenarios import EVENT_BYTES, TURN_EVENTS, UPSTREAM_MODEL

ID = "chatcmpl-9686e09cbacc6650"
CREATED = 1795222392
TEXT = "12 * 17 is 204. "  # so that a gateway that asks before it trusts gets the right answer
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Sat, 21 Nov 2026 00:53:11 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\ntransfer-encoding: chunked\r\n\r\n"
)
DIFFERENT = 8  # content events
TURN_THOUGHTS = 30  # events of thoughts in an agent's turn
END = b"0\r\n\r\n"


def http(status: str, content: bytes, content_type: str = "application/json") -> bytes:
    """A whole response with a length."""
    head = (
        f"HTTP/1.1 {status}\r\ndate: Sat, 21 Nov 2026 00:53:11 GMT\r\nserver: uvicorn\r\n"
        f"content-length: {len(content)}\r\ncontent-type: {content_type}\r\nvary: Origin\r\n\r\n"
    )
    return head.encode() + content


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _dump(document: object) -> str:
    return json.dumps(document, separators=(",", ":"))


def _event(document: dict[str, Any]) -> bytes:
    return f"data: {_dump(document)}\n\n".encode()


def _stream_event(choices: list[dict[str, Any]], **extra: object) -> bytes:
    shape = {"id": ID, "object": "chat.completion.chunk", "created": CREATED, "model": UPSTREAM_MODEL}
    return _event({**shape, "choices": choices, **extra})


def _choice(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _delta(number: int) -> bytes:
    """A content event of exactly `EVENT_BYTES`. Others have another text: no model repeats one."""
    empty = len(_stream_event([_choice({"content": ""}) | {"token_ids": None}]))
    content = (TEXT * 8)[number : number + EVENT_BYTES - empty]
    return _stream_event([_choice({"content": content}) | {"token_ids": None}])


ROLE = chunk(
    _stream_event([_choice({"role": "assistant", "content": ""})], prompt_token_ids=None, prompt_text=None),
)
DELTA_EVENTS = [_delta(number) for number in range(DIFFERENT)]
DELTAS = [chunk(event) for event in DELTA_EVENTS]
LAST = chunk(
    _stream_event([_choice({"content": "That is it."}, "stop") | {"stop_reason": None, "token_ids": None}]),
)
LAST_TOOL = chunk(
    _stream_event([_choice({}, "tool_calls") | {"stop_reason": None, "token_ids": None}]),
)


def _turn() -> list[bytes]:
    """The events of an agent's turn between its role and its end: thoughts, then one call in pieces."""
    deltas: list[dict[str, Any]] = [
        {"reasoning": f"{TEXT[: 6 + number % 8]}so {number} "} for number in range(TURN_THOUGHTS)
    ]
    pieces = [
        '{"field_0": "',
        *(f'a line {number}\\n of \\"it\\" ' for number in range(TURN_EVENTS - TURN_THOUGHTS - 4)),
        '"}',
    ]
    function = {"name": "function_0", "arguments": ""}
    deltas.append({"tool_calls": [{"id": "call-9bb5896e07d5", "type": "function", "index": 0, "function": function}]})
    deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
    return [chunk(_stream_event([_choice(delta) | {"token_ids": None}])) for delta in deltas]


TURN = _turn()
USAGE = chunk(
    _stream_event(
        [],
        usage={"prompt_tokens": 12, "total_tokens": 20, "completion_tokens": 8},
        system_fingerprint="vllm-0.32.0-d2ab61f3",
    )
)
DONE = chunk(b"data: [DONE]\n\n")


def _completion(message: dict[str, Any], finish: str) -> bytes:
    said = {"role": "assistant", "content": None, "refusal": None, "annotations": None, "audio": None}
    choice = {
        "index": 0,
        "message": {**said, "function_call": None, "reasoning": None, **message},
        "logprobs": None,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": None,
        "routed_experts": None,
    }
    usage = {"prompt_tokens": 12, "total_tokens": 20, "completion_tokens": 8}
    document = {
        "id": ID,
        "object": "chat.completion",
        "created": CREATED,
        "model": UPSTREAM_MODEL,
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": "vllm-0.32.0-d2ab61f3",
        "usage": {**usage, "prompt_tokens_details": None, "completion_tokens_details": None},
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }
    return http("200 OK", _dump(document).encode())


CHAT = _completion({"content": TEXT + "That is it."}, "stop")


def _call(request: dict[str, Any]) -> dict[str, Any]:
    """A call of the first tool offered, every required argument filled after its type."""
    function = request["tools"][0]["function"]
    parameters = function.get("parameters", {})
    filler = {"integer": 12, "number": 12, "boolean": True, "array": [], "object": {}}
    properties = parameters.get("properties", {})
    arguments = {
        name: filler.get(properties.get(name, {}).get("type"), "Berlin")
        for name in parameters.get("required", properties)
    }
    return {
        "id": "chatcmpl-tool-9bb5896e07d5",
        "type": "function",
        "function": {"name": function["name"], "arguments": json.dumps(arguments)},
    }


def canary(content: bytes) -> bytes:
    """The answer to a chat that no load sent, a gateway's own test question: slow and careful."""
    try:
        asked = json.loads(content)
    except ValueError:
        return http("400 Bad Request", b'{"error":{"message":"not JSON","type":"BadRequestError","code":400}}')
    calls = [_call(asked)] if asked.get("tools") and asked.get("tool_choice") != "none" else []
    if not asked.get("stream"):
        return _completion({"content": None, "tool_calls": calls}, "tool_calls") if calls else CHAT
    usage = USAGE if (asked.get("stream_options") or {}).get("include_usage") else b""
    if calls:
        said = chunk(_stream_event([_choice({"tool_calls": [{"index": 0, **calls[0]}]})]))
        return b"".join((STREAM_HEAD, ROLE, said, LAST_TOOL, usage, DONE, END))
    return b"".join((STREAM_HEAD, ROLE, DELTAS[0], LAST, usage, DONE, END))


MODELS = http(
    "200 OK",
    _dump(
        {
            "object": "list",
            "data": [
                {
                    "id": UPSTREAM_MODEL,
                    "object": "model",
                    "created": CREATED,
                    "owned_by": "vllm",
                    "root": UPSTREAM_MODEL,
                    "parent": None,
                    "max_model_len": 131072,
                    "permission": [],
                }
            ],
        }
    ).encode(),
)
HEALTH = http("200 OK", b"")
VERSION = http("200 OK", b'{"version":"0.32.0"}')
NOT_FOUND = http("404 Not Found", b'{"detail":"Not Found"}')


def metrics(running: int, chats: int, events: int) -> bytes:
    """vLLM's counters that a prober reads; they move with the work."""
    label = f'{{engine="0",model_name="{UPSTREAM_MODEL}"}}'
    lines = (
        "process_start_time_seconds 1.79522228654e+09",
        f"vllm:num_requests_running{label} {running}.0",
        f"vllm:num_requests_waiting{label} 0.0",
        f"vllm:kv_cache_usage_perc{label} {min(running, 1000) / 1000}",
        f"vllm:prompt_tokens_total{label} {chats * 12}.0",
        f"vllm:generation_tokens_total{label} {chats * 8 + events}.0",
    )
    return http("200 OK", ("\n".join(lines) + "\n").encode(), "text/plain; version=1.0.0; charset=utf-8")
