"""Translates OpenAI's requests into Ollama's native API: `/api/chat`, `/api/generate`, `/api/embed`. Pure.

Ollama's `/v1` takes no `num_ctx`: it silently cuts a prompt that exceeds the window of the loaded model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import Raw

from gateway.domain.pooled import is_cut_to_fit
from gateway.engines.base import InexpressibleRequest, RequestFields, UnmetDemand
from gateway.engines.ollama.calls import RequiredCall, read_required_call
from gateway.engines.ollama.schema import Definitions
from gateway.engines.strict import any_number, whole_number

# OpenAI's and vLLM's names -> the name among Ollama's `options`. Of the two limits the newer one wins.
OPTIONS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "seed", "stop")},
    **{name: name for name in ("presence_penalty", "frequency_penalty")},
    "repetition_penalty": "repeat_penalty",
    "repeat_penalty": "repeat_penalty",
    "max_tokens": "num_predict",
    "max_completion_tokens": "num_predict",
}
# Options that decide how a model is loaded: with another value than before, Ollama loads it again, under everybody.
_LOADING = frozenset(
    {"num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "low_vram", "numa"}
    | {"f16_kv", "vocab_only", "draft_num_predict"}
)
_NUMBERS = frozenset(OPTIONS.values()) - {"stop"} | {"num_keep", "typical_p", "repeat_last_n"}
_WHOLE = frozenset(("num_predict", "top_k", "seed", "num_keep", "repeat_last_n"))
Thinking = Literal["optional", "always", "never"]
_LEVELS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


@dataclass(slots=True)
class OllamaCall:
    """A request for Ollama. `path` is below the server's root; `text_bytes` are the UTF-8 bytes of prompt text in
    `body`, without tools, thoughts and pictures."""

    path: str
    body: dict[str, Any]
    text_bytes: int = 0
    other_bytes: int = 0  # of tools and thoughts, which the template may render too
    pictures: int = 0
    think_wished: bool = False  # `think` comes from an effort, which is only a wish: it may be dropped
    wants_usage: bool = False  # the client wants the usage chunk
    window: int | None = None  # its `num_ctx`
    required_call: RequiredCall | None = None  # the call that `tool_choice` requires


def chat_call(
    raw: Mapping[str, Raw], *, stream: bool, thinking: Thinking | None = None, levels: bool = False
) -> OllamaCall:
    """`/api/chat`. `thinking` is the backend's declaration; `levels`: its Ollama takes an effort as a level for every
    model that thinks. Raises Refused."""
    fields = RequestFields(raw)
    _refuse_several(fields)
    messages, text_bytes = read_messages(fields["messages"])
    tools, choice = fields["tools"], fields["tool_choice"]
    required_call = read_required_call(tools, choice)
    body = _body(fields, stream)
    body["messages"] = messages
    if required_call is not None:
        body["messages"], body["format"] = required_call.instruct(messages), required_call.format
        text_bytes += len(required_call.instructions.encode(errors="replace"))
    else:
        if tools and choice != "none":
            body["tools"] = raw["tools"]
        if (form := read_format(fields)) is not None:
            body["format"] = form
    think, wished = read_think(fields, levels=levels)
    if think is None and required_call is not None and may_stop_thinking(fields, thinking):
        think = False
    if think is not None and (thinking != "never" or not (think and wished)):
        body["think"] = think
    if fields["logprobs"]:
        body["logprobs"] = True
        body["top_logprobs"] = fields["top_logprobs"] or 0
    other = len(bytes(raw["tools"])) if "tools" in body else 0
    other += sum(len(message.get("thinking", "")) for message in messages)
    pictures = sum(len(message.get("images", ())) for message in messages)
    wants = wants_usage(fields)
    return OllamaCall("/api/chat", body, text_bytes, other, pictures, wished, wants, required_call=required_call)


def completion_call(raw: Mapping[str, Raw], *, stream: bool) -> OllamaCall:
    """`/api/generate`, without the chat template (`raw`). A `suffix` needs the template's fill-in-the-middle form: raw
    mode would drop it. Raises Refused."""
    fields = RequestFields(raw)
    _refuse_several(fields)
    for name in ("echo", "logprobs"):
        if fields[name]:
            raise UnmetDemand(f"`{name}` is not available for completions on Ollama: leave it out.", name)
    prompt = fields["prompt"]
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise UnmetDemand(
            "Ollama takes one prompt, as a string: send several prompts one by one, tokens as text.", "prompt"
        )
    if not prompt:
        raise InexpressibleRequest("`prompt` is empty: Ollama would only load the model.", "prompt")
    body = _body(fields, stream)
    # Without `think: false` a thinking model's text is split into `response` and `thinking`, in raw mode too.
    body |= {"prompt": prompt, "raw": True, "think": False}
    if suffix := fields["suffix"]:
        body |= {"suffix": suffix, "raw": False}
    if (form := read_format(fields)) is not None:
        body["format"] = form
    return OllamaCall("/api/generate", body, len(prompt.encode(errors="replace")), wants_usage=wants_usage(fields))


def embeddings_call(raw: Mapping[str, Raw]) -> OllamaCall:
    """`/api/embed`. An input over the window is an error, not cut, unless the client wants it cut. Raises Refused."""
    fields = RequestFields(raw)
    given = fields["input"]
    inputs = [given] if isinstance(given, str) else given
    if not isinstance(inputs, list) or not all(isinstance(text, str) for text in inputs) or not inputs:
        raise UnmetDemand("Ollama embeds text: `input` must be a string or a list of strings, not tokens.", "input")
    if fields["encoding_format"] not in (None, "float", "base64"):
        raise InexpressibleRequest("`encoding_format` must be float or base64.", "encoding_format")
    body = {"model": fields["model"], "input": inputs, "truncate": is_cut_to_fit(raw), **_settings(fields)}
    if fields["dimensions"] is not None:
        body["dimensions"] = fields["dimensions"]
    longest = max(len(text.encode(errors="replace")) for text in inputs)
    return OllamaCall("/api/embed", body, longest)


def _refuse_several(fields: RequestFields) -> None:
    for name in ("n", "best_of"):
        if (count := whole_number(fields[name])) is not None and count != 1:
            raise UnmetDemand(
                f"Ollama gives one answer per request: `{name}` must be 1. Send the request again for more.", name
            )


def _body(fields: RequestFields, stream: bool) -> dict[str, Any]:
    # Since 0.12.6 a prompt over the window is refused instead of cut. `shift` is not sent: it is part of how a model is
    # loaded, and each change of it loads the model again.
    return {"model": fields["model"], "stream": stream, "truncate": False, **_settings(fields)}


def _settings(fields: RequestFields) -> dict[str, Any]:
    options, keep_alive = read_options(fields), fields["keep_alive"]
    return ({"options": options} if options else {}) | ({} if keep_alive is None else {"keep_alive": keep_alive})


def read_options(fields: RequestFields) -> dict[str, Any]:
    """Ollama's `options`. OpenAI's fields override the client's own options. Options that decide how the model is
    loaded are left out. A value of a wrong type, which Ollama answers with 500, is refused."""
    given = fields["options"]
    if given is not None and not isinstance(given, dict):
        raise InexpressibleRequest("`options` must be an object.", "options")
    options = {name: value for name, value in (given or {}).items() if name not in _LOADING}
    for name, option in OPTIONS.items():
        if (value := fields[name]) is not None:
            options[option] = _option(option, value, name)
    options = {option: _option(option, value, "options") for option, value in options.items()}
    limit = options.get("num_predict")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InexpressibleRequest("The limit of the answer's tokens must be an integer of at least 1.", "max_tokens")
    if isinstance(options.get("stop"), str):
        options["stop"] = [options["stop"]]
    return options


def fit_to_window(call: OllamaCall, window: int | None, left: int | None) -> None:
    """Set `num_ctx`, and limit an answer without a limit to the tokens that are `left` (None = it has no text): Ollama
    would go on when the window is full, and forget the beginning of the prompt."""
    if window is None:
        return
    options = call.body.setdefault("options", {})
    options["num_ctx"] = call.window = window
    if left is not None and options.get("num_predict") is None:
        options["num_predict"] = left


def _option(option: str, value: Any, param: str) -> Any:
    """The value as Ollama reads it: OpenAI's fields may be numbers as text elsewhere. Raises InexpressibleRequest."""
    if option in _NUMBERS and param != "options" and isinstance(value, (str, float)):
        value = whole_number(value) if option in _WHOLE else any_number(value)
    if option in _NUMBERS and value is not None and type(value) not in (int, float):
        raise InexpressibleRequest(f"`{option if param == 'options' else param}` must be a number.", param)
    if option == "stop" and value is not None and not isinstance(value, str):
        texts = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) for text in texts):
            raise InexpressibleRequest("`stop` must be a string or a list of strings.", param)
    return value


def read_think(fields: RequestFields, *, levels: bool = False) -> tuple[bool | str | None, bool]:
    """(`think`, is it only a wish): from Ollama's field, a switch of the chat template, or an effort."""
    if (think := fields["think"]) is not None:
        return think, False
    switches = fields["chat_template_kwargs"]
    if isinstance(switches, dict):
        for name in ("enable_thinking", "thinking"):
            if isinstance(switches.get(name), bool):
                return switches[name], False
    reasoning = fields["reasoning"]
    effort = fields["reasoning_effort"] or (reasoning.get("effort") if isinstance(reasoning, dict) else None)
    if effort is None:
        return None, False
    if effort == "none":
        return False, True
    # Before 0.17.7 only gpt-oss knows levels, and other models answer 400 to one.
    return (_LEVELS.get(effort, "medium") if levels or "gpt-oss" in str(fields["model"]) else True), True


def may_stop_thinking(fields: RequestFields, thinking: Thinking | None) -> bool:
    """May thinking be turned off for a required call? Then Ollama applies `format` from the first token on. With
    thinking it lets the model think freely and runs it a second time (since 0.12.4), or constrains the thoughts
    (before). It is not turned off for a model that always thinks: its thoughts would be read as the answer."""
    return thinking != "always" and "gpt-oss" not in str(fields["model"])


def read_format(fields: RequestFields) -> Any:
    """Ollama's `format`: "json", a schema, or None. It is enforced with and without `strict`."""
    wanted = fields["response_format"]
    if wanted is None:
        return None
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return "json"
    described = wanted.get("json_schema") if kind == "json_schema" else None
    if isinstance(described, dict) and isinstance(described.get("schema"), dict):
        definitions = Definitions()
        return definitions.rooted(definitions.adopt(described["schema"], "response_format"))
    raise InexpressibleRequest(
        "`response_format` must be text, json_object, or json_schema with a schema.", "response_format"
    )


def wants_usage(fields: RequestFields) -> bool:
    options = fields["stream_options"]
    return isinstance(options, dict) and options.get("include_usage") is True


_decode = msgspec.json.Decoder(Any).decode


# -- the messages of a chat --------------------------------------------------------------------------------------------


def read_messages(value: Any) -> tuple[list[dict[str, Any]], int]:
    """(Ollama's messages, UTF-8 bytes of their text). Raises Refused."""
    if not isinstance(value, list) or not value:
        raise InexpressibleRequest("`messages` must be a list with at least one message.", "messages")
    names: dict[str, str] = {}  # id of a call -> name of its tool: Ollama's templates identify results by tool name
    messages = [_message(message, f"messages[{index}]", names) for index, message in enumerate(value)]
    return messages, sum(len(message["content"].encode(errors="replace")) for message in messages)


def _message(received: Any, where: str, names: dict[str, str]) -> dict[str, Any]:
    if not isinstance(received, dict) or not isinstance(received.get("role"), str):
        raise InexpressibleRequest(f"`{where}` must be an object with a `role`.", where)
    role = {"developer": "system", "function": "tool"}.get(received["role"], received["role"])
    text, images = _content(received.get("content"), where)
    message: dict[str, Any] = {"role": role, "content": text}
    if images:
        message["images"] = images
    if role == "assistant":
        thought = received.get("reasoning") or received.get("reasoning_content")
        if isinstance(thought, str):
            message["thinking"] = thought
        if calls := received.get("tool_calls"):
            message["tool_calls"] = list(_calls(calls, where, names))
    elif role == "tool":
        name = received.get("name") or names.get(str(received.get("tool_call_id")))
        message |= {"tool_name": name} if name else {}
        message |= {"tool_call_id": received["tool_call_id"]} if received.get("tool_call_id") else {}
    return message


def _content(content: Any, where: str) -> tuple[str, list[str]]:
    """(text, images as base64) of a message's content, which is a string, null, or a list of parts."""
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        raise InexpressibleRequest(f"`{where}.content` must be a string or a list of parts.", where)
    texts, images = [], []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "refusal") and isinstance(part.get(kind), str):
            texts.append(part[kind])
        elif kind == "image_url":
            images.append(_picture(part.get("image_url"), where))
        else:
            raise UnmetDemand(f"`{where}.content`: Ollama takes text and pictures, not a part of type {kind!r}.", where)
    return "\n".join(texts), images


def _picture(image: Any, where: str) -> str:
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str):
        raise InexpressibleRequest(f"`{where}.content`: an image_url part needs a `url`.", where)
    if url[:5].lower() != "data:":
        hint = "Send the image itself, as data:image/png;base64,..., or let the gateway fetch it (`images.fetch`)."
        raise UnmetDemand(f"`{where}.content`: Ollama fetches no pictures. {hint}", where)
    head, found, data = url.partition(",")
    if not found or not head.endswith(";base64"):
        raise InexpressibleRequest(
            f"`{where}.content`: the data URL must be in base64 (data:image/png;base64,...).", where
        )
    return data


def _calls(calls: Any, where: str, names: dict[str, str]) -> Iterable[dict[str, Any]]:
    if not isinstance(calls, list):
        raise InexpressibleRequest(f"`{where}.tool_calls` must be a list.", where)
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InexpressibleRequest(f"`{where}.tool_calls`: every call needs a `function` with a `name`.", where)
        ours: dict[str, Any] = {"function": {"name": function["name"], "arguments": _object(function.get("arguments"))}}
        if isinstance(call.get("id"), str):
            ours["id"] = call["id"]
            names[call["id"]] = function["name"]
        yield ours


def _object(arguments: Any) -> dict[str, Any]:
    """A call's arguments as an object, which Ollama requires. Arguments of an earlier turn that are no object are kept
    as text: refusing them would make the conversation impossible to continue."""
    value: Any = {} if arguments is None else arguments
    if isinstance(arguments, str):
        try:
            value = _decode(arguments or "{}")
        except (msgspec.DecodeError, RecursionError):
            value = arguments
    return value if isinstance(value, dict) else {"arguments": value}
