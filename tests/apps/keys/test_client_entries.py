"""Edits of the clients of routes.yaml in its text."""

from __future__ import annotations

import pytest

from gateway.apps.keys.client_entries import with_client, with_fields, without_client, written_field
from gateway.cli.config_edits import CannotEdit

HEAD = "# fleet\nbackends: {a: {url: 'http://h:1'}}  # the only one\n"
BLOCK = (
    HEAD
    + """\
clients:
  # the first
  one:
    key: "${ONE}"   # from the environment
    rpm: 5
    aliases:
      - a
      - "b*"
  two: {key: 'k2', tasks: {alias: a}}   # second

# behind
alerts: {}
"""
)
FLOW = HEAD + "clients: {one: {key: k1, rpm: 5}, two: {key: k2}}  # both\n"


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (HEAD, HEAD + '\nclients:\n  new: {key: "k"}\n'),
        (HEAD + "clients:\nalerts: {}\n", HEAD + 'clients: {new: {key: "k"}}\nalerts: {}\n'),
        (HEAD + "clients: # none yet\n", HEAD + 'clients: {new: {key: "k"}} # none yet\n'),
        (HEAD + "clients: {}\n", HEAD + 'clients: {new: {key: "k"}}\n'),
        (FLOW, FLOW.replace("{key: k2}}", '{key: k2}, new: {key: "k"}}')),
        (BLOCK, BLOCK.replace("# second\n", '# second\n  new: {key: "k"}\n')),
        (BLOCK.partition("  two")[0], BLOCK.partition("  two")[0] + '  new: {key: "k"}\n'),
    ],
)
def test_a_client_is_added_and_nothing_else_changes(text: str, after: str) -> None:
    assert with_client(text, "new", {"key": "k"}).rstrip("\n") == after.rstrip("\n")


def test_fields_are_set_added_and_taken_out() -> None:
    rotated = with_fields(BLOCK, "one", {"old_key": written_field(BLOCK, "one", "key"), "key": "new"})
    assert 'key: "new"   # from the environment\n' in rotated
    assert '      - "b*"\n    old_key: "${ONE}"\n  two:' in rotated
    assert with_fields(rotated, "one", {"old_key": None}) == BLOCK.replace('"${ONE}"', '"new"')
    flow = with_fields(FLOW, "two", {"old_key": "k2", "key": "new"})
    assert 'two: {key: "new", old_key: "k2"}}  # both' in flow
    assert with_fields(flow, "two", {"old_key": None}) == FLOW.replace("key: k2", 'key: "new"')
    assert with_fields(FLOW, "one", {"rpm": None}) == FLOW.replace(", rpm: 5", "")
    assert with_fields(FLOW, "one", {"key": None}) == FLOW.replace("key: k1, ", "")
    assert with_fields(FLOW, "one", {"old_key": None}) == FLOW


def test_a_client_is_taken_out_with_its_lines_alone() -> None:
    assert without_client(BLOCK, "two") == BLOCK.replace("  two: {key: 'k2', tasks: {alias: a}}   # second\n", "")
    rest = without_client(BLOCK, "one")
    assert rest == HEAD + "clients:\n  # the first\n" + BLOCK[BLOCK.index("  two") :]
    assert without_client(FLOW, "one") == HEAD + "clients: {two: {key: k2}}  # both\n"
    assert without_client(FLOW, "two") == HEAD + "clients: {one: {key: k1, rpm: 5}}  # both\n"


def test_what_cannot_be_done_is_told() -> None:
    with pytest.raises(CannotEdit, match="rotate one"):
        with_client(BLOCK, "one", {"key": "k"})
    with pytest.raises(CannotEdit, match="there are one, two"):
        with_fields(BLOCK, "onne", {"key": "k"})
    with pytest.raises(CannotEdit, match="anybody may ask"):
        without_client(HEAD + "clients: {one: {key: k1}}\n", "one")
    with pytest.raises(CannotEdit, match="no client"):
        without_client(HEAD, "one")
    anchored = HEAD + "clients:\n  one: &c {key: k}\n  two: *c\n"
    with pytest.raises(CannotEdit, match="by hand"):
        without_client(anchored, "one")
    with pytest.raises(CannotEdit, match="by hand"):
        with_fields(anchored, "one", {"key": "other"})
