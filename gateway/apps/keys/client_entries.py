"""Edits of the `clients` of routes.yaml in its text: comments, order and everything beside the entry stay. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

from gateway.config.document import read_document
from gateway.config.problems import Report

_encode = msgspec.json.Encoder().encode


class NotEdited(Exception):
    """The file cannot be edited so; the message says what to do."""


def with_client(text: str, name: str, fields: dict[str, Any]) -> str:
    """The file with a further client. Raises NotEdited."""
    entry = f"{name}: {{{', '.join(f'{field}: {_quoted(value)}' for field, value in fields.items())}}}"
    section = _section(text)
    if section is None:
        return _checked(
            text, text + ("" if text.endswith("\n") or not text else "\n") + f"\nclients:\n  {entry}\n", name, fields
        )
    key, clients = section
    if _found(clients, name) is not None:
        raise NotEdited(f"there is a client '{name}' already: `gateway client rotate {name}` gives it another key")
    if not isinstance(clients, MappingNode):  # `clients:` and nothing behind it
        at = _line_end(text, key.end_mark.index)
        return _checked(text, f"{text[:at]}\n  {entry}{text[at:]}", name, fields)
    return _checked(text, _with(text, clients, entry), name, fields)


def with_fields(text: str, name: str, fields: dict[str, Any]) -> str:
    """The file with these fields of the client; None takes one out. Raises NotEdited."""
    for field, value in fields.items():
        _, entry = _entry(text, name)
        found = _found(entry, field)
        if value is None:
            text = text if found is None else _without(text, entry, found)
        elif found is not None:
            node = found[1]
            text = text[: node.start_mark.index] + _quoted(value) + text[node.end_mark.index :]
        else:
            text = _with(text, entry, f"{field}: {_quoted(value)}")
        if _data(text)["clients"][name].get(field) != value:
            raise NotEdited(_BY_HAND)
    return text


def without_client(text: str, name: str) -> str:
    """The file without this client. Raises NotEdited, also for the last one: without clients anybody may ask."""
    before = _data(text)
    _entry(text, name)
    section = _section(text)
    found = _found(section[1], name) if section is not None else None
    assert section is not None
    assert found is not None
    clients = section[1]
    assert isinstance(clients, MappingNode)
    if len(clients.value) == 1:
        raise NotEdited(f"'{name}' is the last client: without one, anybody may ask. Take `clients` out by hand")
    edited = _without(text, clients, found)
    del before["clients"][name]
    if _data(edited) != before:
        raise NotEdited(_BY_HAND)
    return edited


def written_field(text: str, name: str, field: str) -> str | None:
    """The field of a client as the file has it, variables not expanded; None where it is not written."""
    _, entry = _entry(text, name)
    found = _found(entry, field)
    return str(found[1].value) if found is not None else None


_BY_HAND = "this place of the file is written in a way that cannot be edited here: edit it by hand"


def _section(text: str) -> tuple[Node, Node] | None:
    root = YAML(typ="safe", pure=True).compose(text)
    return _found(root, "clients") if isinstance(root, MappingNode) else None


def _entry(text: str, name: str) -> tuple[Node, MappingNode]:
    section = _section(text)
    found = _found(section[1], name) if section is not None else None
    if found is None:
        names = (
            [str(key.value) for key, _ in section[1].value] if section and isinstance(section[1], MappingNode) else []
        )
        raise NotEdited(f"there is no client '{name}'" + (f": there are {', '.join(names)}" if names else ""))
    if not isinstance(found[1], MappingNode) or not found[1].value:
        raise NotEdited(_BY_HAND)
    return found[0], found[1]


def _found(node: Node, key: str) -> tuple[Node, Node] | None:
    if not isinstance(node, MappingNode):
        return None
    return next(((k, v) for k, v in node.value if isinstance(k, ScalarNode) and k.value == key), None)


def _with(text: str, around: MappingNode, entry: str) -> str:
    """The text with a further entry at the end of the mapping."""
    if around.flow_style:
        at = _leaf_end(around) if around.value else around.start_mark.index + 1
        return text[:at] + (", " if around.value else "") + entry + text[at:]
    at = _line_end(text, _leaf_end(around))
    return f"{text[:at]}\n{' ' * around.value[0][0].start_mark.column}{entry}{text[at:]}"


def _without(text: str, around: MappingNode, entry: tuple[Node, Node]) -> str:
    """The text without this entry of the mapping."""
    key, value = entry
    if around.flow_style:
        position = [k for k, _ in around.value].index(key)
        if position + 1 < len(around.value):
            return text[: key.start_mark.index] + text[around.value[position + 1][0].start_mark.index :]
        start = _end(around.value[position - 1][1]) if position else key.start_mark.index
        return text[:start] + text[_end(value) :]
    start = text.rfind("\n", 0, key.start_mark.index) + 1
    return text[:start] + text[_line_end(text, _leaf_end(value)) + 1 :]


def _end(node: Node) -> int:
    """Where the node ends. A block ends with its last leaf, and not with the comments behind it."""
    flow = not isinstance(node, CollectionNode) or node.flow_style
    return int(node.end_mark.index) if flow else _leaf_end(node)


def _leaf_end(node: Node) -> int:
    """Where the last value inside the node ends."""
    if isinstance(node, ScalarNode) or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _quoted(value: Any) -> str:
    """A value in YAML's flow form, which JSON is; the text of a variable is quoted too."""
    return _encode(value).decode()


def _data(text: str) -> dict[str, Any]:
    report = Report("routes.yaml")
    found = read_document(text, report)
    if found is None or report.errors:
        raise NotEdited(_BY_HAND)
    return found


def _checked(before: str, after: str, name: str, fields: dict[str, Any]) -> str:
    """`after`, if it differs from `before` in this client and nothing else."""
    expected = _data(before)
    expected["clients"] = {**(expected.get("clients") or {}), name: fields}
    if _data(after) != expected:
        raise NotEdited(_BY_HAND)
    return after
