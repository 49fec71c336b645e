"""Parses the tool calls in a region of raw model text: one reader per way of writing them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Arguments = dict[str, Any]
Schemas = Mapping[str, Mapping[str, Any]]  # tool name -> its `parameters`


@dataclass(frozen=True, slots=True)
class Call:
    """One parsed call. `arguments` is JSON text; `complete` is false when the model was cut inside it."""

    name: str
    arguments: str
    complete: bool = True


Reader = Callable[[str, Schemas], list[Call]]


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def typed(text: str, schema: Mapping[str, Any] | None, key: str) -> Any:
    """A parameter's text as the type its schema names; text when it does not parse."""
    wanted = ((schema or {}).get("properties") or {}).get(key, {}).get("type")
    if wanted == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


# --- JSON objects -------------------------------------------------------------------------------------------------


def json_calls(text: str) -> list[Call] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    calls = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            return None
        calls.append(Call(item["name"], dumps(item.get("arguments", item.get("parameters", {})))))
    return calls


def read_hermes(text: str, _: Schemas) -> list[Call]:
    calls: list[Call] = []
    for body in re.findall(r"<tool_call>(.*?)(?:</tool_call>|\Z)", text, re.S):
        found = json_calls(body)
        if found is None:
            return []
        calls += found
    return calls


def read_llama(text: str, _: Schemas) -> list[Call]:
    calls: list[Call] = []
    for part in text.split("; "):
        calls += json_calls(part) or []
    return calls


def read_phi(text: str, _: Schemas) -> list[Call]:
    return json_calls(text.removeprefix("functools")) or []


def read_mistral(text: str, _: Schemas) -> list[Call]:
    body = text.removeprefix("[TOOL_CALLS]")
    if body.lstrip().startswith("["):
        return json_calls(body) or []
    found = re.findall(r"(?:\A|\[TOOL_CALLS\])([\w.-]+)\[ARGS\](.*?)(?=\[TOOL_CALLS\]|\Z)", body, re.S)
    return [Call(name, arguments) for name, arguments in found]


def pattern_reader(pattern: str) -> Reader:
    """For formats that hold the arguments as JSON text: groups `name`, `args`, `end`."""
    compiled = re.compile(pattern, re.S)

    def read(text: str, _: Schemas) -> list[Call]:
        return [Call(m["name"], m["args"].strip(), bool(m["end"])) for m in compiled.finditer(text)]

    return read


# --- one parameter at a time --------------------------------------------------------------------------------------


def parameter_reader(call: str, parameter: str) -> Reader:
    """For XML-like formats: `call` has the groups name, body, end; `parameter` has key and value."""
    calls, parameters = re.compile(call, re.S), re.compile(parameter, re.S)

    def read(text: str, schemas: Schemas) -> list[Call]:
        found = []
        for match in calls.finditer(text):
            schema = schemas.get(match["name"])
            arguments = {p["key"]: typed(p["value"], schema, p["key"]) for p in parameters.finditer(match["body"])}
            found.append(Call(match["name"], dumps(arguments), bool(match["end"])))
        return found

    return read


def gemma_reader(opening: str, closing: str, quote: str) -> Reader:
    region = re.compile(
        re.escape(opening) + r"call:(?P<name>[\w.-]+)\{(?P<body>.*?)(?P<end>\}" + re.escape(closing) + r"|\Z)", re.S
    )
    q = re.escape(quote)
    pair = re.compile(
        rf"(?P<key>\w+):(?:{q}(?P<text>.*?)(?:{q}|\Z)|(?P<bare>[^,{{}}]+|\{{.*?\}}|\[.*?\]))(?:,|\Z)", re.S
    )

    def read(text: str, _: Schemas) -> list[Call]:
        found = []
        for match in region.finditer(text):
            arguments = {
                p["key"]: bare(p["bare"]) if p["text"] is None else p["text"] for p in pair.finditer(match["body"])
            }
            found.append(Call(match["name"], dumps(arguments), bool(match["end"])))
        return found

    return read


def bare(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def gemma_writer(opening: str, closing: str, quote: str) -> Callable[[str, Arguments], str]:
    def value(v: Any) -> str:
        return f"{quote}{v}{quote}" if isinstance(v, str) else dumps(v)

    def write(name: str, arguments: Arguments) -> str:
        return f"{opening}call:{name}{{" + ",".join(f"{k}:{value(v)}" for k, v in arguments.items()) + f"}}{closing}"

    return write


def plain(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def read_pythonic(text: str, _: Schemas) -> list[Call]:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return []
    calls = []
    for node in tree.elts if isinstance(tree, ast.List) else []:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            return []
        try:
            arguments = {k.arg or "": ast.literal_eval(k.value) for k in node.keywords}
        except ValueError:
            return []
        calls.append(Call(node.func.id, dumps(arguments)))
    return calls
