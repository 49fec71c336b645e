"""The statements of a shell script, walked in the order in which a shell runs them.

Nothing is run. A condition that the script itself decides is followed; of any other, all branches count, with a note.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from gateway.apps.importing.launches import Launches
from gateway.apps.importing.shell import WORD, Variables
from gateway.apps.importing.shell_conditions import decided, decided_by_default
from gateway.apps.importing.shell_syntax import behind, clauses, heredoc, is_broken, parsed, source
from gateway.config.problems import Path

if TYPE_CHECKING:
    from tree_sitter import Node

_MAY_START = re.compile(r"\b(docker|podman|vllm)\b")
COMMAND = 16  # what a command costs in words, and a variable that it sees in characters
_GROUPS = ("program", "compound_statement", "do_group", "negated_command", "pipeline", "else_clause")
_OPTIONS = re.compile(r"\$\{?[#1@]|\bgetopts\b")
_NESTED = 60  # statements inside of statements, and calls of functions


class Ended(Exception):
    """The script, or the function at hand, ends here."""


class Statements:
    """Walks the statements of a script in the order in which a shell runs them, and hands over each command. `lines`:
    where each path stands."""

    def __init__(self, launches: Launches, lines: dict[Path, int], stem: str) -> None:
        self.launches, self.lines, self.stem = launches, lines, stem
        self._line = 1  # of the command at hand
        self._first = 0  # lines before the text at hand
        self._sourced_at: int | None = None  # the line that reads in the file at hand; None in the script itself
        self._foreign: set[str] = set()  # functions of such files
        self.variables = Variables(
            spend=lambda steps: launches.notes.spend(steps, self._line), note=self.note_value, file=launches.file
        )
        self._counts: dict[str, int] = {}
        self._conditions: list[tuple[str, int]] = []  # every undecided condition around the command at hand
        self._functions: dict[str, Node] = {}
        self._called: set[str] = set()
        self._nested = 0
        self._starts = 0  # commands that start an engine, so far
        self._depth = 0

    # -- statements ---------------------------------------------------------------------------------------------------

    def read(self, text: str, first_line: int = 1, depth: int = 0) -> None:
        """All commands of a script."""
        self._line = first_line
        self.launches.notes.spend(len(text) if depth else 0, first_line)
        root = parsed(text, self.launches.file)
        if root is None:
            self._to_do("script", first_line, "its syntax is too tangled to be read", "import a part of it")
            return
        before = self._first, self._depth
        self._first, self._depth = first_line - 1, depth
        known, begun = set(self._functions), self._starts
        try:
            self._statements(root.children)
            if self._starts == begun:  # a script that takes the name of a function as its argument
                for name, body in list(self._functions.items()):
                    if name not in known | self._called and self._starts == begun:
                        self._ends(partial(self._statement, body))
        except Ended:
            pass
        finally:
            self._first, self._depth = before

    def _statements(self, nodes: Sequence[Node]) -> None:
        for node, after in zip_longest(nodes, nodes[1:]):
            if not node.is_named or node.type == "comment":
                continue
            broken = node.type == "command" and after is not None and after.type == "ERROR"
            if not broken or after is None or after.start_point[0] > node.end_point[0]:
                self._statement(node)

    def _statement(self, node: Node) -> None:
        self._line = self._sourced_at or self._first + node.start_point[0] + 1
        self.launches.notes.spend(2 * COMMAND * WORD, self._line)
        if self._nested >= _NESTED:
            self._to_do("script", self._line, "statements stand too deep in each other", "import a part of it")
            return
        self._nested += 1
        try:
            reader = getattr(self, f"_{node.type}", None)
            if node.type == "ERROR" or (node.type in ("command", "declaration_command") and is_broken(node)):
                message = "a shell would not read this as it stands"
                self._to_do("syntax", self._line, message, "correct it, or write the launch by hand")
                self._statements(node.children if node.type == "ERROR" else ())
            elif reader is not None:
                reader(node)
            elif node.type in _GROUPS:
                self._statements(node.children)
        finally:
            self._nested -= 1

    def _to_do(self, what: str, line: int, message: str, hint: str) -> None:
        path: Path = (what, line)
        self.lines[path] = line
        self.launches.notes.to_do(path, message, hint)

    def note_value(self, words: str) -> None:
        path: Path = ("variables", self._line)
        self.lines[path] = self._line
        self.launches.notes.changed(path, self.launches.secrets.mask(words))

    def _variable_assignment(self, node: Node) -> None:
        self._note_condition()
        self._take(node, exported=False)

    def _variable_assignments(self, node: Node) -> None:
        for one in node.named_children:
            self._variable_assignment(one)

    def _declaration_command(self, node: Node) -> None:
        self._note_condition()
        exported = source(node).startswith(("export", "declare -x", "typeset -x"))
        for one in node.named_children:
            if one.type == "variable_assignment":
                self._take(one, exported=exported)
            elif one.type == "variable_name" and exported:
                self.variables.exported[source(one)] = None
            elif one.type in ("concatenation", "string") and "=" in source(one):
                name, _, value = self.variables.text(one).partition("=")
                self.variables.values[name] = [value]
                self._hide(name)

    def _take(self, node: Node, *, exported: bool) -> None:
        before = self.variables.values.get(source(node.named_children[0]))
        name = self.variables.assign(node)
        if before and self._conditions and re.fullmatch(r"\$\{\d+\}", " ".join(self.variables.values.get(name, []))):
            self.variables.values[name] = before  # an option of the script, which is not given here
        if exported:
            self.variables.exported[name] = None
        if self._conditions:
            self.variables.soft.add(name)
        self._hide(name)

    def _hide(self, name: str) -> None:
        """A secret never gets any further than the line that assigns it."""
        values = self.variables.values.get(name)
        if values is not None and len(values) == 1:
            self.lines[("export", name)] = self._line
            self.variables.values[name] = [self.launches.secrets.value(name, values[0], ("export", name))]

    def _unset_command(self, node: Node) -> None:
        for one in node.named_children:
            self.variables.values[source(one)] = []

    def _source(self, text: str) -> None:
        """What a file sets and defines that the script reads in."""
        root = parsed(text, self.launches.file)
        at, line = self._sourced_at, self._line
        if root is None or self._nested >= _NESTED:
            return
        self._sourced_at = at or line
        self._nested += 1
        try:
            self._ends(lambda: self._statements(root.children))
        finally:
            self._nested -= 1
            self._sourced_at, self._line = at, line

    def _subshell(self, node: Node) -> None:
        with self._restored():
            self._ends(lambda: self._statements(node.children))

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """What is set inside is not set behind."""
        self.launches.notes.spend(len(self.variables.values) * WORD, self._line)
        kept = dict(self.variables.values), self.variables.positional
        try:
            yield
        finally:
            self.variables.values, self.variables.positional = kept

    def _ends(self, run: Callable[[], None]) -> bool:
        """Run it; True where it ends by itself."""
        try:
            run()
        except Ended:
            return True
        return False

    def _function_definition(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self._functions[source(name)] = body
            (self._foreign.add if self._sourced_at else self._foreign.discard)(source(name))

    def _call(self, name: str, words: Sequence[str]) -> None:
        self._called.add(name)
        local = {match[1] for match in re.finditer(r"\blocal\s+(?:-\w+\s+)*(\w+)", source(self._functions[name]))}
        kept = {one: self.variables.values.get(one) for one in local}
        before, self.variables.positional = self.variables.positional, list(words)
        at = self._sourced_at
        try:
            self._sourced_at = self._line if name in self._foreign else at
            self._statement(self._functions[name])
        except Ended as ended:
            if ended.args != ("return",):
                raise
        finally:
            self.variables.positional, self._sourced_at = before, at
            for one, values in kept.items():
                self.variables.values.pop(one, None)
                self.variables.values |= {one: values} if values is not None else {}

    # -- conditions ---------------------------------------------------------------------------------------------------

    def _list(self, node: Node) -> None:
        """`A && B`, `A || B`: B counts unless A is a test, or an assignment, that decides."""
        left, sign, right = node.children[0], node.children[1].type, node.children[-1]
        begun = self._starts
        self._statement(left)
        held = decided(self.variables, left)
        if held is None and left.type in ("test_command", "list", "negated_command"):
            self._branches([[right]], self._first + node.start_point[0] + 1)
        elif held is None and not (sign == "||" and self._starts > begun):  # an engine that starts does not fail
            self._ends(lambda: self._statement(right))
        elif held is not None and held == (sign == "&&"):
            self._statement(right)

    def _if_statement(self, node: Node) -> None:
        branches: list[list[Node]] = []
        open_ended = True
        likely: int | None = 0  # the branch that is taken by default, as far as is known; None where nothing says
        for test, body in clauses(node):
            for one in test:
                if one.type != "test_command" and _MAY_START.search(source(one)):
                    self._statement(one)
            held = True if not test else decided(self.variables, test[-1]) if len(test) == 1 else None
            if held is False:
                continue
            if likely == len(branches):
                by_default = held or (decided_by_default(self.variables, test[0], body) if len(test) == 1 else None)
                likely = None if by_default is None else likely + (not by_default)
            branches.append(body)
            if held:
                open_ended = False
                break
        if not open_ended and len(branches) == 1:
            self._statements(branches[0])
        elif branches:
            line = self._first + node.start_point[0] + 1
            self._branches(branches, line, complete=not open_ended, likely=likely)

    def _case_statement(self, node: Node) -> None:
        value = self.variables.text(node.child_by_field_name("value"))
        unsure = self.variables.unsure or "$" in value
        branches: list[list[Node]] = []
        likely: int | None = None
        for item in node.named_children:
            if item.type != "case_item":
                continue
            patterns = [self.variables.text(one) for one in item.children_by_field_name("value")]
            body = [one for one in item.named_children if one not in item.children_by_field_name("value")]
            fits = "$" not in value and any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns)
            if fits and not unsure:
                self._statements(body)
                return
            likely = len(branches) if fits and likely is None else likely
            branches.append(body)
        if unsure:
            likely = len(branches) if likely is None and "$" not in value else likely
            self._branches(branches, self._first + node.start_point[0] + 1, what="case", likely=likely)

    def _branches(
        self,
        branches: list[list[Node]],
        line: int,
        *,
        complete: bool = False,
        what: str = "if",
        likely: int | None = None,
    ) -> None:
        """All of them count; engines that stand in several of them do not run at the same time. `likely`: the one that
        is taken where nothing is set outside of the script (that behind the last: none of them): what the others set
        does not count behind them. None = all count."""
        self._conditions.append((what, line))
        found: list[list[str]] = []
        ended = []
        try:
            for number, branch in sorted(enumerate(branches), key=lambda one: one[0] == likely):
                before = set(self.launches.draft.backends)
                with nullcontext() if likely in (None, number) else self._restored():
                    ended.append(self._ends(partial(self._statements, branch)))
                found.append([name for name in self.launches.draft.backends if name not in before])
        finally:
            self._conditions.pop()
        if sum(map(bool, found)) > 1:
            for names in filter(None, found):
                self.launches.only_one_of(names, (what, line))
        if complete and ended and all(ended):
            raise Ended

    def _note_condition(self) -> None:
        """All branches count whatever the condition says."""
        if self._conditions:
            self._to_do(
                *self._conditions[-1], "not followed: all branches count, the last value wins", "look at the result"
            )

    def _for_statement(self, node: Node) -> None:
        self._note_loop("for")
        variable = node.child_by_field_name("variable")
        values = [word.text for word in self.variables.words(node.children_by_field_name("value"))]
        if variable is not None:
            self.variables.values.pop(source(variable), None)
            self.variables.values |= {source(variable): values[:1]} if values else {}
            self.variables.soft.add(source(variable))
        of_options = self.variables.positional is None and any(
            source(one).strip('"') == "$@" for one in node.children_by_field_name("value")
        )
        with self._restored() if of_options else nullcontext():
            self._loop(node)

    def _c_style_for_statement(self, node: Node) -> None:
        self._note_loop("for")
        self._loop(node)

    def _while_statement(self, node: Node) -> None:
        """What a loop over the script's own options sets does not count behind it: none is given here."""
        condition = node.named_children[0]
        if _MAY_START.search(source(condition)):
            self._statement(condition)
        of_options = self.variables.positional is None and _OPTIONS.search(source(condition))
        with self._restored() if of_options else nullcontext():
            self._loop(node)

    def _loop(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        self._ends(lambda: self._statements(body.children if body is not None else []))

    def _note_loop(self, what: str) -> None:
        path = self.path_of(what, self._line)
        self.launches.notes.to_do(path, "not followed: what stands inside counts once", "look at the result")

    # -- commands -----------------------------------------------------------------------------------------------------

    def command(self, node: Node, further: Sequence[Node], read: Node | None) -> None:
        """One command. `further`: words of it that stand behind redirections; `read`: the here-document that it
        reads."""
        raise NotImplementedError

    def _redirected_statement(self, node: Node) -> None:
        """A command with redirections: the grammar takes words behind those for their targets."""
        body = node.child_by_field_name("body")
        further = [
            word
            for part in node.named_children
            if part.type in ("file_redirect", "heredoc_redirect")
            for word in behind(part)
        ]
        if body is not None and body.type == "command" and not body.has_error:
            self.command(body, further, heredoc(node))
        elif body is not None:
            self._statement(body)

    def _command(self, node: Node) -> None:
        self.command(node, [], next((one for one in node.named_children if one.type == "herestring_redirect"), None))

    def path_of(self, what: str, line: int) -> Path:
        number = self._counts.get(what, 0)
        self._counts[what] = number + 1
        path: Path = (what, number) if number else (what,)
        self.lines[path] = line
        return path
