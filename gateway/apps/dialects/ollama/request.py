"""Bodies of Ollama's API as bodies of chats, completions and embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from gateway.apps.dialects.fields import (
    an_object,
    call_of,
    encoded,
    expected,
    invalid,
    put,
    string,
    text_part,
    value_in,
)
from gateway.domain.body import read_fields
from gateway.domain.open_calls import OpenCalls
from gateway.engines.ollama.request import OPTIONS
from gateway.errors import GatewayError

Resolve = Callable[[str], str]  # a model's name as Ollama's clients write it -> an alias; raises GatewayError

# How a model is loaded, cut and rendered: the backends decide it here.
_DROPPED = ("keep_alive", "truncate", "shift", "raw", "name", "options", "format", "template", "context", "n")
# They would change the prompt: the client is told that they had no effect. (`truncate: false` is what is always done.)
_LEFT_OUT = ("template", "context", "truncate")
_OURS = {theirs: ours for ours, theirs in OPTIONS.items() if ours not in ("max_completion_tokens", "repeat_penalty")}
_USAGE = Raw(b'{"include_usage":true}')
_MEDIA = {"/9j/": "jpeg", "R0lG": "gif", "UklG": "webp"}  # by the first letters of a picture in base64

_encode = msgspec.json.Encoder().encode


class OllamaRequest(NamedTuple):
    """A translated request. `model`: its name as the client wrote it. `empty`: it has no prompt, which makes Ollama
    load the model, or `unload` it."""

    body: bytes
    model: str
    stream: bool
    left_out: list[str]
    empty: bool = False
    unload: bool = False


def chat_of(body: bytes, resolve: Resolve) -> OllamaRequest:
    """A request to `/api/chat` as a chat. Unknown fields are passed on. Raises GatewayError (`invalid_request_body`,
    `input_unsupported`, and those of `resolve`)."""
    fields = read_fields(body)
    given = value_in(fields.pop("messages", None), "messages") or []
    if not isinstance(given, list):
        raise expected("messages", "a list", given)
    return _generating(fields, resolve, {"messages": encoded(_messages(given))} if given else {})


def generation_of(body: bytes, resolve: Resolve) -> OllamaRequest:
    """A request to `/api/generate` as a chat; with `raw` or a `suffix` as a completion, to which no chat template is
    applied. Raises as `chat_of`."""
    fields = read_fields(body)
    prompt, system, images, raw = (value_in(fields.pop(n, None), n) for n in ("prompt", "system", "images", "raw"))
    if prompt is not None and not isinstance(prompt, str):
        raise expected("prompt", "a string", prompt)
    if raw or value_in(fields.get("suffix"), "suffix"):
        if images:
            raise invalid("images", "go with a chat template, and not with `raw` or `suffix`.", unsupported=True)
        return _generating(fields, resolve, {"prompt": Raw(_encode(prompt or ""))})
    fields.pop("suffix", None)
    head = [{"role": "system", "content": system}] if system else []
    user = {"role": "user", "content": prompt, "images": images}
    return _generating(fields, resolve, {"messages": encoded(_messages([*head, user]))} if prompt or images else {})


def embedding_of(body: bytes, resolve: Resolve) -> OllamaRequest:
    """A request to `/api/embed`, or the older `/api/embeddings` (`prompt`), as one for embeddings."""
    fields = read_fields(body)
    model = _model(fields, resolve)
    prompt = fields.pop("prompt", None)
    if prompt is not None:
        fields.setdefault("input", prompt)
    cut = value_in(fields.get("truncate"), "truncate") is not False  # Ollama's default
    for name in _DROPPED:
        fields.pop(name, None)
    if cut:
        fields["truncate_prompt_tokens"] = Raw(b"-1")  # vLLM's name for it, to the window
    return OllamaRequest(_encode(fields), model, stream=False, left_out=[])


def _generating(fields: dict[str, Raw], resolve: Resolve, prompt: dict[str, Raw]) -> OllamaRequest:
    model = _model(fields, resolve)
    stream = value_in(fields.pop("stream", None), "stream") is not False  # Ollama streams by default
    left_out = [name for name in _LEFT_OUT if value_in(fields.get(name), name)]
    options = value_in(fields.get("options"), "options") or {}
    form, think = value_in(fields.get("format"), "format"), value_in(fields.pop("think", None), "think")
    unload = value_in(fields.get("keep_alive"), "keep_alive") in (0, "0", "0s", "0m")
    for name in (*_DROPPED, *(("tools",) if bytes(fields.get("tools", b"[]")) in (b"[]", b"null") else ())):
        fields.pop(name, None)
    for name, value in an_object(options, "options").items():
        if name in _OURS and not (name == "num_predict" and isinstance(value, int) and value <= 0):  # -1: no limit
            put(fields, _OURS[name], value)
    put(fields, "response_format", _response_format(form))
    if isinstance(think, bool):
        put(fields, "thinking", {"type": "enabled" if think else "disabled"})
    elif think:
        put(fields, "reasoning_effort", think)
    if stream:
        fields |= {"stream": Raw(b"true"), "stream_options": _USAGE}
    try:
        return OllamaRequest(_encode(fields | prompt), model, stream, left_out, not prompt, unload)
    except RecursionError:  # reading succeeded, but a chat is one level deeper
        raise GatewayError("invalid_request_body", "The request body is nested too deeply.") from None


def _model(fields: dict[str, Raw], resolve: Resolve) -> str:
    """The name of the model as the client wrote it; the field gets the alias."""
    model = value_in(fields.get("model", fields.get("name")), "model")
    if not isinstance(model, str) or not model:
        raise expected("model", "the name of an alias", model)
    fields["model"] = Raw(_encode(resolve(model)))
    return model


def _response_format(form: Any) -> dict[str, Any] | None:
    if form in (None, ""):
        return None
    if form == "json":
        return {"type": "json_object"}
    if not isinstance(form, dict):
        raise expected("format", '"json" or a JSON schema', form)
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form, "strict": True}}


def _messages(given: list[Any]) -> list[dict[str, Any]]:
    """Ollama's messages as a chat's. A result may name its tool instead of the id of the call."""
    waiting = OpenCalls()
    return [_message(message, f"messages[{i}]", waiting, i) for i, message in enumerate(given)]


def _message(given: Any, where: str, waiting: OpenCalls, turn: int) -> dict[str, Any]:
    given = an_object(given, where)
    role, content = string(given, "role", where), given.get("content") or ""
    if not isinstance(content, str):
        raise expected(f"{where}.content", "a string", content)
    message: dict[str, Any] = {"role": role, "content": content}
    if images := given.get("images"):
        pictures = [{"type": "image_url", "image_url": {"url": url}} for url in _pictures(images, f"{where}.images")]
        message["content"] = [*([text_part(content)] if content else []), *pictures]
    if isinstance(thoughts := given.get("thinking"), str) and thoughts:
        message["reasoning_content"] = thoughts
    if calls := given.get("tool_calls"):
        message["tool_calls"] = _calls(calls, f"{where}.tool_calls", turn)
        waiting.begin((call["id"], call["function"]["name"]) for call in message["tool_calls"])
    if role == "tool":
        answered = None
        name, id_ = given.get("tool_name") or given.get("name"), given.get("tool_call_id")
        if isinstance(name, str | None) and isinstance(id_ or None, str | None):
            answered = waiting.take(id_ or None, name)
        message["tool_call_id"] = id_ or answered or f"call_{turn}"
    return message


def _pictures(images: Any, where: str) -> list[str]:
    """The data URLs of pictures in base64."""
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise expected(where, "a list of pictures in base64", images)
    return [i if i.startswith("data:") else f"data:image/{_MEDIA.get(i[:4], 'png')};base64,{i}" for i in images]


def _calls(calls: Any, where: str, turn: int) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise expected(where, "a list", calls)
    found = []
    for i, call in enumerate(calls):
        function = an_object(call.get("function") if isinstance(call, dict) else None, f"{where}[{i}].function")
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else _encode(arguments or {}).decode()
        name = string(function, "name", f"{where}[{i}].function")
        found.append(call_of(str(call.get("id") or f"call_{turn}_{i}"), name, text))
    return found
