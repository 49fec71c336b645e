"""A key is set in a YAML file, and the rest of the file stays as it is."""

from __future__ import annotations

import pytest

from gateway.cli.config_edits import CannotEdit, with_entry
from gateway.config.document import read_document
from gateway.config.problems import Report

BLOCK = """\
# the fleet
backends:
  a:   # the first
    url: "http://h:1"
    # how it starts
    launch:
      command: >-
        vllm serve m
        --port 1
  # the second
  b: {url: "http://h:2", launch: {command: x}} # flow
  c:
    observed: {kv: 1GiB}   # from May
    launch: {command: y}
  d:
    observed:
      kv: 1GiB
      tokens: 5   # few
    # kept
    launch: {command: y}
nodes: {n: {memory: 1GiB,}}
"""


def set_in(text: str, name: str, value: str = "{kv: 2GiB}") -> str:
    return with_entry(text, ("backends", name), "observed", value, before="launch")


@pytest.mark.parametrize("name", "abcd")
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_only_this_key_changes(name: str, newline: str) -> None:
    before = read_document(BLOCK, Report("x")) or {}
    edited = set_in(BLOCK.replace("\n", newline), name)
    after = read_document(edited, Report("x")) or {}
    assert after["backends"].pop(name) == {**before["backends"].pop(name), "observed": {"kv": "2GiB"}}
    assert after == before
    assert set_in(edited, name) == edited
    for comment in ("# the fleet", "# the first", "# how it starts\n    launch:", "# the second", "# flow", "# kept"):
        assert comment.replace("\n", newline) in edited


def test_a_flow_mapping_gets_it_at_its_end() -> None:
    edited = with_entry(BLOCK, ("nodes", "n"), "reserve", "3GiB")
    assert (read_document(edited, Report("x")) or {})["nodes"] == {"n": {"memory": "1GiB", "reserve": "3GiB"}}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("backends: {a: {url: x}}", ("backends", "b")),
        ("backends: {a: }", ("backends", "a")),
        ("x: &m {url: x}\nbackends: {a: *m}", ("backends", "a")),
        ("backends: {a: {}}", ("backends", "a")),
    ],
)
def test_what_cannot_be_edited_is_said(text: str, path: tuple[str, ...]) -> None:
    with pytest.raises(CannotEdit):
        with_entry(text, path, "observed", "{kv: 2GiB}")
