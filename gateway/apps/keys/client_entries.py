"""Edits of the `clients` of routes.yaml in its text: comments, order and everything beside the entry stay. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.cli.config_edits import CannotEdit, with_entry, without_entry
from gateway.config.document import read_document
from gateway.config.problems import Report

_BY_HAND = "this place of the file is written in a way that cannot be edited here: edit it by hand"


def with_client(text: str, name: str, fields: dict[str, Any]) -> str:
    """The file with a further client. Raises CannotEdit."""
    entry = f"{{{', '.join(f'{field}: {_quoted(value)}' for field, value in fields.items())}}}"
    before = _data(text)
    clients = before.get("clients") or {}
    if name in clients:
        raise CannotEdit(f"there is a client '{name}' already: `gateway client rotate {name}` gives it another key")
    if clients:
        edited = with_entry(text, ("clients",), name, entry)
    elif "clients" in before:  # and nothing behind it
        edited = with_entry(text, (), "clients", f"{{{name}: {entry}}}")
    else:
        edited = text + ("" if text.endswith("\n") or not text else "\n") + f"\nclients:\n  {name}: {entry}\n"
    return _checked(edited, {**before, "clients": {**clients, name: fields}})


def with_fields(text: str, name: str, fields: dict[str, Any]) -> str:
    """The file with these fields of the client; None takes one out. Raises CannotEdit."""
    _client(text, name)
    before = _data(text)
    for field, value in fields.items():
        if value is None:
            text = without_entry(text, ("clients", name), field)
        else:
            text = with_entry(text, ("clients", name), field, _quoted(value))
    entry = {**before["clients"][name], **fields}
    before["clients"][name] = {field: value for field, value in entry.items() if value is not None}
    return _checked(text, before)


def without_client(text: str, name: str) -> str:
    """The file without this client. Raises CannotEdit, also for the last one: without clients anybody may ask."""
    _client(text, name)
    before = _data(text)
    del before["clients"][name]
    if not before["clients"]:
        raise CannotEdit(f"'{name}' is the last client: without one, anybody may ask. Take `clients` out by hand")
    return _checked(without_entry(text, ("clients",), name), before)


def written_field(text: str, name: str, field: str) -> str | None:
    """The field of a client as the file has it, variables not expanded; None where it is not written."""
    return _client(text, name).get(field)


def _client(text: str, name: str) -> dict[str, Any]:
    clients = _data(text).get("clients")
    clients = clients if isinstance(clients, dict) else {}
    if name not in clients:
        there = f": there are {', '.join(clients)}" if clients else ""
        raise CannotEdit(f"there is no client '{name}'{there}")
    entry = clients[name]
    if not isinstance(entry, dict):
        raise CannotEdit(_BY_HAND)
    return entry


def _quoted(value: Any) -> str:
    """A value in YAML's flow form, which JSON is; the text of a variable is quoted too."""
    return msgspec.json.encode(value).decode()


def _data(text: str) -> dict[str, Any]:
    report = Report("routes.yaml")
    found = read_document(text, report)
    if found is None or report.errors:
        raise CannotEdit(_BY_HAND)
    return found


def _checked(text: str, expected: dict[str, Any]) -> str:
    """The text, if it says what it should and nothing else."""
    if _data(text) != expected:
        raise CannotEdit(_BY_HAND)
    return text
