"""`/v1/responses` as vLLM 0.32 serves it: the request read as a chat, the answer written as a response."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from simulator.answer import Answer
from simulator.chat import ChatStream, Shape
from simulator.faults import Fault
from simulator.parsers import Delta, parse
from simulator.server import Exchange
from simulator.validation import ApiError
from simulator.wire import send_body

Item = dict[str, Any]

_SAME = (
    *("model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos", "logit_bias", "user"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "skip_special_tokens", "vllm_xargs"),
    *("chat_template_kwargs", "parallel_tool_calls", "include_reasoning"),
)
_TEXTS = {"reasoning": "reasoning_text", "message": "output_text"}


def to_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat that vLLM makes of the request. Fields that it does not know are left out."""
    chat = {name: body[name] for name in _SAME if body.get(name) is not None}
    if body.get("previous_response_id") is not None:
        name = body["previous_response_id"]
        raise ApiError(404, f"Response with id '{name}' not found.", "invalid_request_error", param="response_id")
    system = body.get("instructions")
    chat["messages"] = [{"role": "system", "content": system}] if system else []
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given or []
    for item in items:
        _add(item, chat["messages"])
    functions = [tool for tool in body.get("tools") or [] if tool.get("type") == "function"]
    if functions:
        chat["tools"] = [{"type": "function", "function": _without_type(tool)} for tool in functions]
        choice = body.get("tool_choice")
        if isinstance(choice, dict) and choice.get("type") == "function":
            choice = {"type": "function", "function": {"name": choice["name"]}}
        chat["tool_choice"] = choice or "auto"
    if body.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    if effort := (body.get("reasoning") or {}).get("effort"):
        chat["reasoning_effort"] = effort
    form = (body.get("text") or {}).get("format") or {}
    if form.get("type") == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": _without_type(form)}
    elif form.get("type") == "json_object":
        chat["response_format"] = {"type": "json_object"}
    return chat


def _without_type(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in value.items() if key != "type"}


def _add(item: Item, messages: list[dict[str, Any]]) -> None:
    kind = item.get("type", "message")
    before = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if kind == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
        return
    if kind == "message" and item.get("role") != "assistant":
        content = item.get("content")
        parts = content if isinstance(content, list) else [{"text": content or ""}]
        messages.append({"role": item.get("role"), "content": "".join(part.get("text") or "" for part in parts)})
        return
    if item.get("encrypted_content"):
        raise ApiError(400, "Encrypted content is not supported.", param="input")
    if before is None:
        before = {"role": "assistant", "content": None}
        messages.append(before)
    if kind == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        before["tool_calls"] = [*before.get("tool_calls", ()), call]
        return
    content = item.get("content") or item.get("summary") or ""
    text = content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)
    before["reasoning" if kind == "reasoning" else "content"] = text


# -- the answer --------------------------------------------------------------------------------------------------------


def _reasoning(id_: str, text: str | None, status: str | None) -> Item:
    content = None if text is None else [{"text": text, "type": "reasoning_text"}]
    fields = {"summary": [], "type": "reasoning", "content": content, "encrypted_content": None, "status": status}
    return {"id": id_, **fields}


def _message(id_: str, text: str | None, status: str) -> Item:
    part: Item = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
    content = [] if text is None else [part]
    return {
        "id": id_, "content": content, "role": "assistant", "status": status, "type": "message", "phase": None,
    }  # fmt: skip


def _call(id_: str, call_id: str, name: str, arguments: str, status: str) -> Item:
    return {
        "arguments": arguments, "call_id": call_id, "name": name, "type": "function_call", "id": id_,
        "async": None, "caller": None, "namespace": None, "status": status,
    }  # fmt: skip


def _response(asked: Mapping[str, Any], shape: Shape, output: list[Item], status: str, usage: Any) -> dict[str, Any]:
    cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
    return {
        "id": shape.id, "created_at": shape.created, "incomplete_details": cut,
        "instructions": asked.get("instructions"), "metadata": asked.get("metadata"), "model": shape.model,
        "object": "response", "output": output, "parallel_tool_calls": True,
        "temperature": asked.get("temperature", 1.0),
        "tool_choice": asked.get("tool_choice", "auto") if asked.get("tools") else "none",
        "tools": asked.get("tools") or [], "top_p": asked.get("top_p", 1.0), "background": False,
        "max_output_tokens": asked.get("max_output_tokens"), "max_tool_calls": None, "previous_response_id": None,
        "prompt": None, "reasoning": asked.get("reasoning"), "service_tier": "auto", "status": status,
        "text": asked.get("text"), "top_logprobs": None, "truncation": "disabled", "usage": usage,
        "user": asked.get("user"), "presence_penalty": 0.0, "frequency_penalty": 0.0, "kv_transfer_params": None,
        "ec_transfer_params": None, "input_messages": None, "output_messages": None,
    }  # fmt: skip


def _usage(answer: Answer, reasoning: int) -> dict[str, Any]:
    used = answer.usage()
    prompt, made = used["prompt_tokens"], used["completion_tokens"]
    of_prompt = {"cached_tokens": 0, "cache_write_tokens": 0, "input_tokens_per_turn": [], "cached_tokens_per_turn": []}
    of_answer = {"reasoning_tokens": reasoning, "tool_output_tokens": 0, "output_tokens_per_turn": []}
    return {
        "input_tokens": prompt,
        "input_tokens_details": of_prompt,
        "output_tokens": made,
        "output_tokens_details": {**of_answer, "tool_output_tokens_per_turn": []},
        "total_tokens": prompt + made,
    }


async def send_response(
    exchange: Exchange, faults: Mapping[str, Fault], shape: Shape, answer: Answer, asked: Mapping[str, Any]
) -> None:
    """Send a complete response without stream."""
    read = parse(answer.produced(0), shape.rules, shape.thinking, shape.form, shape.schemas, shape.tools_live)
    output: list[Item] = []
    if read.reasoning and shape.include_reasoning:
        output.append(_reasoning(f"rs_{shape.new_id()}", read.reasoning, None))
    if read.content:
        output.append(_message(f"msg_{shape.new_id()}", read.content, "completed"))
    output += [
        _call(f"fc_{shape.new_id()}", shape.new_id(), call.name, call.arguments, "completed") for call in read.calls
    ]
    status = "incomplete" if answer.sequences[0].finish == "length" else "completed"
    usage = _usage(answer, read.reasoning_tokens if shape.rules else 0)
    body = _response(asked, shape, output, status, usage)
    await send_body(exchange, faults, json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode())


class ResponseStream(ChatStream):
    """Writes one response as events. When the engine dies, the stream just ends, without a word."""

    def __init__(
        self,
        exchange: Exchange,
        faults: Mapping[str, Fault],
        shape: Shape,
        answer: Answer,
        asked: Mapping[str, Any],
    ) -> None:
        super().__init__(exchange, faults, shape, answer)
        self._asked = asked
        self._number = 0
        self._done: list[Item] = []
        self._open: tuple[Item, str] | None = None  # the item, and its text so far

    async def _write_events(self, keep_alive: Callable[[], Any]) -> None:
        if "hang_before_content" not in self.faults:
            await self.stream.send(self._roles())
            self.opened = True
        await super()._write_events(keep_alive)

    async def _break(self, cut: Fault) -> None:
        self.answer.cancel()
        if cut.kind in ("die_mid", "error_event"):
            await self.exchange.cut(cut.reset)
        await self.stream.end()

    async def _end(self) -> None:
        cut = self.answer.sequences[0].finish == "length"
        events = self._close_item()
        thought = self.choices[0].splitter.tokens if self.shape.rules else 0
        status = "incomplete" if cut else "completed"
        whole = _response(self._asked, self.shape, self._done, status, _usage(self.answer, thought))
        if "end_without_finish" not in self.faults:
            events.append(self._told(f"response.{status}", response=whole))
        await self.stream.send(events)
        await self.stream.end()

    def _close(self, index: int, choice: Any, deltas: list[Delta]) -> list[bytes]:
        choice.closed = True
        return [self._delta(index, delta) for delta in [*deltas, *choice.last()]]

    def _roles(self) -> list[bytes]:
        begun = _response(self._asked, self.shape, [], "in_progress", None)
        return [self._told(f"response.{kind}", response=begun) for kind in ("created", "in_progress")]

    def _delta(self, index: int, delta: Delta) -> bytes:
        events: list[bytes] = []
        for kind, name in (("reasoning", "reasoning"), ("message", "content")):
            if text := delta.get(name):
                events += self._say(kind, text)
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            if function.get("name") is not None:
                events += self._begin(
                    _call(f"fc_{self.shape.new_id()}", call["id"], function["name"], "", "in_progress")
                )
            if arguments := function.get("arguments"):
                events.append(self._piece("response.function_call_arguments.delta", arguments))
        return b"".join(events)

    def _say(self, kind: str, text: str) -> list[bytes]:
        events: list[bytes] = []
        if self._open is None or self._open[0]["type"] != kind:
            name = self.shape.new_id()
            item = _reasoning(f"rs_{name}", None, "in_progress")
            if kind == "message":
                item = _message(f"msg_{name}", None, "in_progress")
            events += self._begin(item)
            events.append(self._told("response.content_part.added", **self._place(), part=self._part("")))
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        return [*events, self._piece(f"response.{_TEXTS[kind]}.delta", text, content_index=0, **logprobs)]

    def _begin(self, item: Item) -> list[bytes]:
        events = self._close_item()
        self._open = item, ""
        return [*events, self._told("response.output_item.added", item=item, output_index=len(self._done))]

    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        place = {"item_id": self._open[0]["id"], "output_index": len(self._done)}
        return place if self._open[0]["type"] == "function_call" else {"content_index": 0, **place}

    def _part(self, text: str) -> dict[str, Any]:
        assert self._open is not None
        if self._open[0]["type"] == "reasoning":
            return {"text": text, "type": "reasoning_text"}
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": []}

    def _piece(self, kind: str, text: str, **fields: Any) -> bytes:
        assert self._open is not None
        item, before = self._open
        self._open = item, before + text
        return self._told(kind, **{**self._place(), **fields}, delta=text)

    def _close_item(self) -> list[bytes]:
        if self._open is None:
            return []
        item, text = self._open
        place = self._place()
        if item["type"] == "function_call":
            whole = {**item, "arguments": text, "status": "completed"}
            kind = "response.function_call_arguments.done"
            events = [self._told(kind, arguments=text, **place, name=item["name"])]
        else:
            written = _reasoning if item["type"] == "reasoning" else _message
            whole = written(item["id"], text, "completed")
            events = [self._told(f"response.{_TEXTS[item['type']]}.done", **place, text=text)]
            events.append(self._told("response.content_part.done", **place, part=self._part(text)))
        events.append(self._told("response.output_item.done", item=whole, output_index=len(self._done)))
        self._done.append(whole)
        self._open = None
        return events

    def _told(self, kind: str, **fields: Any) -> bytes:
        data = json.dumps(
            {**fields, "sequence_number": self._number, "type": kind}, separators=(",", ":"), ensure_ascii=False
        )
        self._number += 1
        return f"event: {kind}\ndata: {data}\n\n".encode()
