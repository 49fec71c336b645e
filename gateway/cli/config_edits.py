"""One key of a YAML file is set or taken out, and everything else in it stays as it is: comments, order, quotes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

from gateway.cli.options import fail
from gateway.config.load import load_text
from gateway.config.problems import ConfigError


class CannotEdit(Exception):
    """The file has another form than an edit of it can be sure of; the message says which."""


def with_entry(text: str, path: Sequence[str], key: str, value: str, *, before: str = "") -> str:
    """The text with `key: value` in the mapping at `path`; `value` is YAML of one line. A key that is there has its
    value replaced. A new one stands in front of the key `before` and its comments, or at the end. Raises
    CannotEdit."""
    around = _mapping(text, path)
    there = _entry(around, key)
    if there is not None:
        name, old = there
        end = _end(old) if old.start_mark.index < old.end_mark.index else name.end_mark.index + 1
        return text[: name.start_mark.index] + f"{key}: {value}" + text[end:]
    if around.flow_style:
        end = _end(around.value[-1][1])
        return f"{text[:end]}, {key}: {value}{text[end:]}"
    beside = _entry(around, before)
    at = _above_comments(text, _line_start(text, beside[0])) if beside else _next_line(text, around)
    newline = "\r\n" if "\r\n" in text else "\n"
    above = text[:at] if text[:at].endswith("\n") else text[:at] + newline
    return f"{above}{' ' * around.value[0][0].start_mark.column}{key}: {value}{newline}{text[at:]}"


def without_entry(text: str, path: Sequence[str], key: str) -> str:
    """The text without this key of the mapping at `path`, if it is there. Raises CannotEdit."""
    around = _mapping(text, path)
    there = _entry(around, key)
    if there is None:
        return text
    if not around.flow_style:
        return text[: _line_start(text, there[0])] + text[_next_line(text, there[1]) :]
    start, end = there[0].start_mark.index, _end(there[1])
    at = around.value.index(there)
    if at + 1 < len(around.value):
        end = around.value[at + 1][0].start_mark.index
    elif at:
        start = _end(around.value[at - 1][1])
    return text[:start] + text[end:]


def _mapping(text: str, path: Sequence[str]) -> MappingNode:
    node = YAML(typ="safe", pure=True).compose(text)
    for name in path:
        found = _entry(node, name)
        if found is None:
            raise CannotEdit(f"there is no {'.'.join(path)}")
        if found[1].start_mark.index < found[0].start_mark.index:
            raise CannotEdit(f"{name} is an alias of something else in the file")
        node = found[1]
    if not isinstance(node, MappingNode) or not node.value:
        raise CannotEdit(f"{'.'.join(path)} is no mapping with keys")
    return node


def _entry(node: Node | None, key: str) -> tuple[Node, Node] | None:
    entries = node.value if isinstance(node, MappingNode) else ()
    return next(((k, v) for k, v in entries if isinstance(k, ScalarNode) and str(k.value) == key), None)


def _end(node: Node) -> int:
    """Where a value ends: a block's own mark stands behind the comments that follow it."""
    if isinstance(node, ScalarNode):
        if node.style in ("|", ">"):
            raise CannotEdit("a text of several lines stands where a value of one line is wanted")
        return int(node.end_mark.index)
    if not isinstance(node, CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)


def _line_start(text: str, node: Node) -> int:
    return text.rfind("\n", 0, node.start_mark.index) + 1


def _next_line(text: str, node: Node) -> int:
    return text.find("\n", _end(node)) + 1 or len(text)


def _above_comments(text: str, at: int) -> int:
    """The beginning of the lines of comments that stand directly above the line at `at`."""
    while at > 0:
        above = text.rfind("\n", 0, at - 1) + 1
        if not text[above:at].lstrip(" ").startswith("#"):
            return at
        at = above
    return at


# -- files ------------------------------------------------------------------------------------------------------------


def text_of(config: Path) -> str:
    """The text of a file with its own line ends."""
    with config.open(encoding="utf-8", newline="") as file:
        return file.read()


def write_config(config: Path, text: str) -> None:
    """Write routes.yaml whole or not at all. Ends the program where the new text would not be read, or not written."""
    try:
        load_text(text, str(config))
    except ConfigError as error:
        fail(f"the edited file would not be read, and is not written: {error}")
    target = config.resolve()
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", dir=target.parent, delete=False) as file:
            file.write(text)
        shutil.copymode(target, file.name)
        os.replace(file.name, target)
    except OSError as error:
        fail(f"cannot write '{config}': {error.strerror or error}")
