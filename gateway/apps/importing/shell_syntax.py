"""The syntax of a shell script, by tree-sitter: the tree of a text, and the parts of its nodes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gateway.config.problems import ConfigError, Problem

if TYPE_CHECKING:
    from tree_sitter import Node

MISSING = "the grammar of shell scripts is not installed"
INSTALL = "pip install 'spark-gateway[import]'"
_MOST_SECONDS = 4.0  # of the thread's time that the grammar may take for one text
_MOST_SIGNS = {"|": 4000, "<<": 1000}  # each keeps readings open side by side
# `vllm serve <MODEL>`, as instructions have it: no shell means that.
_PLACEHOLDER = re.compile(r"(?<![<\w])<([A-Za-z][\w-]*)>(?=$|[\s\"':/])")
OPEN, CLOSE = "\ue001", "\ue002"


def parsed(text: str, file: str) -> Node | None:
    """The syntax of a script; None where it is too tangled to be read. Raises ConfigError without the extra."""
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError:
        raise ConfigError([Problem(file, None, "", MISSING, INSTALL)]) from None
    text = re.sub(r"\\[ \t]+\n", "\\\n", text.replace("\r\n", "\n"))  # spaces behind a backslash were not meant
    data = _PLACEHOLDER.sub(rf"{OPEN}\1{CLOSE}", text).encode("utf-8", "replace")
    if any(text.count(sign) > most for sign, most in _MOST_SIGNS.items()):
        return None
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    until = time.thread_time() + _MOST_SECONDS
    try:
        tree = parser.parse(
            lambda at, _: data[at : at + 65536], progress_callback=lambda _, __: time.thread_time() > until
        )
    except ValueError:  # given up
        return None
    return tree.root_node


def source(node: Node) -> str:
    """The text of a node as it stands in the script."""
    return (node.text or b"").decode("utf-8", "replace").replace(OPEN, "<").replace(CLOSE, ">")


def heredoc(statement: Node) -> Node | None:
    """The here-document or here-string that a command reads."""
    return next(
        (part for part in statement.named_children if part.type in ("heredoc_redirect", "herestring_redirect")), None
    )


def is_broken(node: Node) -> bool:
    """Whether the grammar found a mistake in a command; that it has no name, `A=1 > log`, is none."""
    return any(child.has_error for child in node.children if child.start_byte < child.end_byte)


def clauses(node: Node) -> Iterator[tuple[list[Node], list[Node]]]:
    """(the commands of the condition, those of the branch) for each branch of an `if`; `else` has no condition."""
    test: list[Node] = []
    body: list[Node] = []
    inside = False
    for child in node.children:
        if child.type == "then":
            inside = True
        elif child.type in ("elif_clause", "else_clause"):
            if test or body:  # an `else` behind an `elif` has none
                yield test, body
            if child.type == "else_clause":
                yield [], child.named_children
            else:
                yield from clauses(child)
            inside, test, body = False, [], []
        elif child.is_named:
            (body if inside else test).append(child)
    if test or body:
        yield test, body


def behind(redirect: Node) -> list[Node]:
    """The words behind a redirection on its line, which the grammar gives to the redirection."""
    parts = [one for one in redirect.named_children if one.type not in ("file_descriptor", "comment")]
    if redirect.type == "file_redirect":
        at = 1
        while at < len(parts) and parts[at].start_byte == parts[at - 1].end_byte:
            at += 1  # `>$OUT/serve-$n.log` comes in pieces
        return parts[at:]
    return [one for one in parts if not one.type.startswith("heredoc_") and one.type != "file_redirect"]
