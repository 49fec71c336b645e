"""A server that answers by the rules of a case: the first rule whose `when` holds for the request."""

from __future__ import annotations

import json
from typing import Any

from tests.scripted import SSE_HEAD, Script, Turn, answer, chunked

Rule = dict[str, Any]
USAGE = {"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20}
_CALM = {"message": {"role": "assistant", "content": "ok"}}  # to the gateway's own harmless requests


def answering(rules: list[Rule]) -> Script:
    async def script(turn: Turn) -> None:
        probe = turn.headers.get("x-request-id", "").startswith("probe-")
        rule = _CALM if probe else next(rule for rule in rules if holds(rule.get("when") or {}, turn.json))
        await send(turn, rule)

    return script


def holds(when: dict[str, Any], body: dict[str, Any]) -> bool:
    """Does all of `when` hold? `has`: a field; `lacks`: a field that is missing; `says`, `silent`: text somewhere in
    the body, and nowhere; `is`: field -> a value that it has; `not`: field -> the values of which it has none."""
    text = json.dumps(body, ensure_ascii=False)
    return (
        ("has" not in when or when["has"] in body)
        and ("lacks" not in when or when["lacks"] not in body)
        and ("says" not in when or when["says"] in text)
        and ("silent" not in when or when["silent"] not in text)
        and all(body.get(name) == value for name, value in when.get("is", {}).items())
        and all(name in body and body[name] not in values for name, values in when.get("not", {}).items())
    )


async def send(turn: Turn, rule: Rule) -> None:
    """`status` with a `body`; a `message` in the form that was asked for; or the `lines` or the `body` of a 200 as they
    are, `streamed` for requests of a stream only. `type`: another content type."""
    streams = bool(turn.json.get("stream"))
    if "status" in rule:
        await turn.send(answer(_bytes(rule["body"]), f"{rule['status']} X", rule.get("type", "application/json")))
    elif "lines" in rule and streams:
        head = SSE_HEAD.replace(b"text/event-stream", rule.get("type", "text/event-stream").encode())
        await turn.send(head + chunked(*[_line(line) for line in rule["lines"]]) + b"0\r\n\r\n")
    elif "body" in rule and (streams or not rule.get("streamed")):
        await turn.send(answer(_bytes(rule["body"]), "200 OK", rule.get("type", "application/json")))
    else:
        await _say(turn, rule, streams)


async def _say(turn: Turn, rule: Rule, streams: bool) -> None:
    message = {"role": "assistant", **rule["message"]}
    calls, end = message.get("tool_calls"), rule.get("finish")
    end = end or ("tool_calls" if calls else "stop")
    if not streams:
        if calls:
            message["tool_calls"] = [{name: v for name, v in call.items() if name != "index"} for call in calls]
        await turn.send(answer(_bytes(whole(message, end))))
        return
    deltas = rule.get("deltas") or [message]
    events = [_line(delta if "choices" in delta else {"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": end}], "usage": USAGE}
    await turn.send(SSE_HEAD + chunked(*events, _line(last), b"data: [DONE]\n\n") + b"0\r\n\r\n")


def whole(message: dict[str, Any], end: str) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": end}
    fields = {"id": "up-1", "object": "chat.completion", "created": 2, "model": "served/model"}
    return {**fields, "choices": [choice], "usage": USAGE}


def _line(line: Any) -> bytes:
    """A line of a stream: text as it is, an object as the data of an event of a chat."""
    if isinstance(line, str):
        return line.encode() + b"\n\n"
    fields = {} if "error" in line else {"id": "up-1", "object": "chat.completion.chunk", "created": 2, "model": "m"}
    return b"data: " + json.dumps({**fields, **line}).encode() + b"\n\n"


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()
