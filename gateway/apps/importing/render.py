"""A draft as the text of routes.yaml."""

from __future__ import annotations

import io
import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, FoldedScalarString

from gateway.apps.importing.draft import Draft, DraftEntry
from gateway.config.document import Plain, plain_value
from gateway.printable import visible

SCHEMA = "routes.schema.json"  # beside the file, for editors
_FIRST_LINE = f"# yaml-language-server: $schema=./{SCHEMA}"
_FLOW_MOST = 3  # keys of a mapping that is written on one line
_LONG = 100  # characters of a command line that is written on one line


def render(draft: Draft) -> str:
    """The draft's data with its comments; reading the text gives exactly `draft.data()`."""
    parts = [_comments([_FIRST_LINE, *(f"# {line}".rstrip() for line in draft.head)])]
    data = draft.data()
    for name in ("server", "defaults"):
        if name in data:
            parts.append(_dump({name: _node(data[name])}))
    for name in ("nodes", "backends", "aliases", "clients"):
        if name in data:
            section = _dump({name: _entries(data[name], getattr(draft, name))})
            parts.append(section + _comments(draft.after.get(name, [])))
    if draft.tail:
        parts.append(_comments(draft.tail))
    return "\n".join(parts)


def _comments(lines: list[str]) -> str:
    return "".join(f"{visible(line)}\n" for line in lines)  # no control character of a quoted value can end the comment


def _dump(section: dict[str, Any]) -> str:
    yaml = YAML()
    yaml.width = 1_000_000  # never wrap inside a value
    yaml.indent(mapping=2, sequence=4, offset=2)
    out = io.StringIO()
    yaml.dump(CommentedMap(section), out)
    return out.getvalue()


def _entries(data: dict[str, Any], entries: dict[str, DraftEntry]) -> CommentedMap:
    """The entries by name, each with its comment before it and its remarks behind the keys."""
    made = CommentedMap()
    for name, keys in data.items():
        entry = entries[name]
        node = _node(keys)
        made[_scalar(name)] = node
        if entry.comment:
            comment = "\n".join(visible(line) for line in entry.comment)
            made.yaml_set_comment_before_after_key(_scalar(name), before=comment, indent=2)
        if isinstance(node, CommentedMap) and entry.remarks:
            node.fa.set_block_style()
            for key, remark in entry.remarks.items():
                if key in node:
                    node.yaml_add_eol_comment(visible(remark), key)
    return made


def _node(value: Any) -> Any:
    """Lists and small mappings on one line, larger mappings one key per line, ambiguous strings in quotes."""
    if isinstance(value, dict):
        node = CommentedMap({_scalar(str(key)): _node(inner) for key, inner in value.items()})
        simple = not any(
            isinstance(inner, dict | list | FoldedScalarString) for inner in [*value.values(), *node.values()]
        )
        if not value or (simple and len(value) <= _FLOW_MOST):
            _flow(node)
        return node
    if isinstance(value, list):
        seq = CommentedSeq(_node(inner) for inner in value)
        _flow(seq)
        return seq
    return _scalar(value) if isinstance(value, str) else value


def _flow(node: CommentedMap | CommentedSeq) -> None:
    """Write the node and all below it on one line: block style is not allowed inside of flow style."""
    node.fa.set_flow_style()


def _scalar(text: str) -> str:
    if len(text) > _LONG and " --" in text and text.isprintable() and text == text.strip():
        return _folded(text)
    plain = plain_value(text)
    risky = not isinstance(plain, Plain) or any(c in text for c in "${}[],#&*!|>%@`'\":?") or text != text.strip()
    risky = risky or not text.isprintable()
    return DoubleQuotedScalarString(text) if risky and not _is_url(text) else str(text)


def _folded(text: str) -> FoldedScalarString:
    """A command line as a block, broken in front of flags; it reads as one line again."""
    breaks, start = [], 0
    flags = [match.start() for match in re.finditer(r"(?<=\S) (?=--\S)", text)]
    for at, following in zip(flags, [*flags[1:], len(text)], strict=False):
        if following - start > _LONG:
            breaks.append(at)
            start = at
    folded: FoldedScalarString = FoldedScalarString(text)
    folded.fold_pos = breaks  # type: ignore[attr-defined]  # where ruamel breaks the lines
    return folded


def _is_url(text: str) -> bool:
    return text.startswith(("http://", "https://")) and not any(c in text for c in "${}[],# \"'")
