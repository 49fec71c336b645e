"""Reads a request to Ollama's API for the simulated model: its fields, and the schemas that `format` may have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from simulator import tokens
from simulator.replies import text_of


class OllamaError(Exception):
    """An answer in Ollama's error shape, a plain string."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def openai_request(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that decide the reply, in OpenAI's names."""
    request: dict[str, Any] = {"messages": body["messages"], "tools": body.get("tools") or []}
    wanted = body.get("format")
    try:
        check_format(wanted)
    except BadFormat as problem:
        raise OllamaError(500, str(problem)) from None
    if isinstance(wanted, dict):
        prompt = " ".join(text_of(m.get("content")) for m in request["messages"] if m.get("role") == "user")
        schema = plain_schema(wanted, prompt)
        request["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    elif wanted == "json":
        request["response_format"] = {"type": "json_object"}
    for message in request["messages"]:
        for image in message.get("images") or []:
            if not isinstance(image, str) or image.startswith(("http:", "https:", "data:")):
                raise OllamaError(400, "illegal base64 data at input byte 4")
    return request


def overflow_of_runner(prompt: int, window: int) -> str:
    """The text of Ollama's error where its llama-server has refused a prompt: the whole body of that answer."""
    message = f"request ({prompt} tokens) exceeds the available context size ({window} tokens), try increasing it"
    error = {"code": 400, "message": message, "type": "exceed_context_size_error"}
    return json.dumps({"error": {**error, "n_prompt_tokens": prompt, "n_ctx": window}}, separators=(",", ":"))


def check_pictures(request: Mapping[str, Any], *, native: bool) -> None:
    """Raises OllamaError for a picture, as a model that sees nothing does. `native`: with its file's own template."""
    if not any(message.get("images") for message in request["messages"]):
        return
    hint = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
    goes = "Multimodal data provided, but model does not support multimodal requests."
    status, message, kind = (500, hint, "server_error") if native else (400, goes, "invalid_request_error")
    error = {"code": status, "message": message, "type": kind}
    raise OllamaError(status, json.dumps({"error": error}, separators=(",", ":")))


def prompt_tokens(request: Mapping[str, Any], *, thoughts: bool = True) -> int:
    """`thoughts`: those of the history are rendered."""
    count = 5 + (tokens.count(json.dumps(request["tools"]).encode()) if request.get("tools") else 0)
    for message in request.get("messages", []):
        count += 6 + tokens.count(text_of(message.get("content")).encode()) + 256 * len(message.get("images") or [])
        if thoughts and message.get("thinking"):
            count += tokens.count(str(message["thinking"]).encode())
    return count


def prompt_left(request: Mapping[str, Any], window: int, *, thoughts: bool) -> int | None:
    """The tokens of the prompt when the oldest messages were dropped to fit the window, but no system message; None =
    the last message alone is too long."""
    messages = list(request["messages"])
    while True:
        oldest = next((i for i, m in enumerate(messages[:-1]) if m.get("role") != "system"), None)
        if oldest is None:
            return None
        del messages[oldest]
        count = prompt_tokens({**request, "messages": messages}, thoughts=thoughts)
        if count < window:
            return count


def keep_alive_seconds(keep_alive: Any) -> float:
    """`keep_alive`: seconds, or a duration like "5m"; negative = for ever."""
    if isinstance(keep_alive, int | float):
        value = float(keep_alive)
    else:
        text = str(keep_alive)
        unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
        try:
            value = float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            raise OllamaError(400, f'time: invalid duration "{text}"') from None
    return 1e9 if value < 0 else value


# -- format -----------------------------------------------------------------------------------------------------------
# Which schemas the grammar converter (llama.cpp's) takes, and an equivalent schema that examples are made of.

_PRIMITIVES = ("string", "number", "integer", "boolean", "null", "object", "array")
_DEEPEST = 8  # references inside references that are followed for an example


class BadFormat(Exception):
    """A schema that the converter refuses as a whole."""


def check_format(wanted: Any) -> None:
    """Raises BadFormat for what is neither "json" nor a schema that a grammar can be made of."""
    if wanted in (None, "", "json"):
        return
    if not isinstance(wanted, dict):
        raise BadFormat(f'invalid format: "{wanted}"; expected "json" or a valid JSON Schema object')
    try:
        _visit(wanted, wanted, set())
    except _Unreadable:
        raise BadFormat("invalid JSON schema in format") from None


class _Unreadable(Exception):
    pass


def _visit(schema: Any, root: Mapping[str, Any], refs: set[str]) -> None:
    """Checks in the converter's order: the first keyword that it knows hides the others."""
    if not isinstance(schema, dict):
        raise _Unreadable
    kind = schema.get("type")
    if "$ref" in schema:
        if schema["$ref"] not in refs:
            refs.add(schema["$ref"])
            _visit(_target(schema["$ref"], root), root, refs)
    elif options := schema.get("oneOf") or schema.get("anyOf"):
        _visit_all(options, root, refs)
    elif isinstance(kind, list):
        _visit_all([{**schema, "type": one} for one in kind], root, refs)
    elif "const" in schema or "enum" in schema:
        return
    elif kind in (None, "object") and ("properties" in schema or schema.get("additionalProperties", True) is not True):
        more = schema.get("additionalProperties")
        _visit_all([*schema.get("properties", {}).values(), *([more] if isinstance(more, dict) else [])], root, refs)
    elif kind in (None, "object", "string") and "allOf" in schema:
        return
    elif kind in (None, "array") and ("items" in schema or "prefixItems" in schema):
        items = schema.get("items", schema.get("prefixItems"))
        _visit_all(items if isinstance(items, list) else [items], root, refs)
    elif kind in (None, "string") and "pattern" in schema:
        if not (schema["pattern"].startswith("^") and schema["pattern"].endswith("$")):
            raise _Unreadable
    elif schema and kind not in _PRIMITIVES:
        raise _Unreadable


def _visit_all(schemas: Sequence[Any], root: Mapping[str, Any], refs: set[str]) -> None:
    for schema in schemas:
        _visit(schema, root, refs)


def _target(ref: str, root: Mapping[str, Any]) -> Any:
    if not ref.startswith("#/"):
        raise _Unreadable
    value: Any = root
    for word in ref.split("/")[1:]:
        if not isinstance(value, dict) or word not in value:
            raise _Unreadable
        value = value[word]
    return value


def plain_schema(schema: Mapping[str, Any], prompt: str) -> Any:
    """The schema with its references resolved. Of alternatives that name a tool, those whose tool the user's
    text (`prompt`) mentions come first."""
    return _plain(schema, schema, prompt, 0)


def _plain(schema: Any, root: Mapping[str, Any], prompt: str, depth: int) -> Any:
    if isinstance(schema, list):
        return sorted((_plain(s, root, prompt, depth) for s in schema), key=lambda s: not _named(s, prompt))
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return {} if depth == _DEEPEST else _plain(_target(schema["$ref"], root), root, prompt, depth + 1)
    plain = {word: value for word, value in schema.items() if word != "$defs"}
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            plain[word] = _plain(schema[word], root, prompt, depth)
    if isinstance(schema.get("properties"), dict):
        plain["properties"] = {name: _plain(s, root, prompt, depth) for name, s in schema["properties"].items()}
    if isinstance(schema.get("items"), dict):
        plain["items"] = _plain(schema["items"], root, prompt, depth)
    return plain


def _named(schema: Any, prompt: str) -> bool:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    name = properties.get("name", {}).get("const") if isinstance(properties, dict) else None
    return isinstance(name, str) and name.replace("_", " ") in prompt.replace("_", " ")
