"""The conditions of a shell script: whether one holds, as far as the script itself decides it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.apps.importing.shell import Variables
from gateway.apps.importing.shell_syntax import source

if TYPE_CHECKING:
    from tree_sitter import Node

_NAMES = re.compile(r"\$\{?(\w+)", re.ASCII)


def decided(variables: Variables, node: Node, *, by_default: bool = False) -> bool | None:
    """Whether a condition holds; None where something decides that the script does not set. `by_default`: as it is
    where nothing is set outside of the script."""
    inner = node.named_children
    if node.type == "negated_command":
        held = decided(variables, inner[-1], by_default=by_default) if inner else None
        return None if held is None else not held
    if node.type in ("variable_assignment", "variable_assignments"):
        return True
    if node.type == "command":
        return {"true": True, ":": True, "false": False}.get(source(node))
    if node.type == "test_command" and len(inner) == 1 and not node.has_error:
        return _tested(variables, inner[0], by_default)
    return None


def decided_by_default(variables: Variables, test: Node, body: Sequence[Node]) -> bool | None:
    """Whether a condition holds where nothing is set outside of the script; None where the script has no default for
    that, or where what follows adds the variable itself to a command: it is meant for a machine that has it."""
    text = "\n".join(map(source, body)).replace("${", "$")
    if "+=" in text and any(f"${name}" in text for name in _NAMES.findall(source(test))):
        return None
    return decided(variables, test, by_default=True)


def _tested(variables: Variables, node: Node, by_default: bool) -> bool | None:
    inner, sign = node.named_children, next((child.type for child in node.children if not child.is_named), "")
    if node.type == "parenthesized_expression" and inner:
        return _tested(variables, inner[0], by_default)
    if node.type == "unary_expression" and sign == "!" and inner:
        held = _tested(variables, inner[-1], by_default)
        return None if held is None else not held
    if node.type == "unary_expression" and len(inner) == 2 and source(inner[0]) in ("-n", "-z"):
        text = _certain(variables, inner[1], by_default)
        return None if text is None else (text != "") == (source(inner[0]) == "-n")
    if node.type == "binary_expression" and len(inner) >= 2:
        if sign in ("&&", "||"):
            left, right = (_tested(variables, one, by_default) for one in (inner[0], inner[-1]))
            stops = sign == "||"
            return stops if stops in (left, right) else None if None in (left, right) else not stops
        left_text, right_text = (_certain(variables, one, by_default) for one in (inner[0], inner[-1]))
        if sign in ("=", "==", "!=") and left_text is not None and right_text is not None:
            quoted = inner[-1].type in ("string", "raw_string")
            same = left_text == right_text if quoted else fnmatch.fnmatchcase(left_text, right_text)
            return same == (sign != "!=")
    return None


def _certain(variables: Variables, node: Node, by_default: bool) -> str | None:
    text = variables.text(node)
    unsure = variables.unsure and not by_default
    return None if unsure or "$" in text or "`" in text else text
