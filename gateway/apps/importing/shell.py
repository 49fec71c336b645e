"""The words of a shell script. Its syntax is read by tree-sitter; what an expansion means is decided here.

Nothing is run. A variable that the script does not set stands as `${NAME}`, for the machine that starts the engine; a
word that is nothing but such a variable, without quotes, is marked: a shell makes no word of it where it is not set."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

from gateway.apps.importing.shell_syntax import CLOSE, OPEN, heredoc, parsed, source
from gateway.launch.docker import read_docker_run
from gateway.launch.flags import vllm_flags

if TYPE_CHECKING:
    from tree_sitter import Node

_MOST_TEXT = 64 * 1024  # characters that variables put into one word: a script may double them
_MOST_WORDS = 10_000  # of an array
_DEEPEST = 24  # expansions inside of expansions
WORD = 2  # what a word costs, in characters
_REFERENCE = re.compile(r"\$\{\w+\}|\$\(.*\)|`.*`", re.ASCII | re.DOTALL)
_SUBSTITUTION = re.compile(r"\$\([^()]*\)", re.DOTALL)
_NAME = r"(?P<name>\w+|[@*#?$!-])(?:\[(?P<index>[^\]]*)\])?"
_EXPANSION = re.compile(
    rf"\$\{{(?P<sign>[#!]?){_NAME}(?:(?P<op>:?[-=?+]|##?|%%?|//?|\^\^?|,,?|[:@])(?P<rest>.*))?\}}", re.ASCII | re.DOTALL
)
_COMPUTED = ("arithmetic_expansion", "process_substitution", "brace_expression")
_EXPANDED = ("simple_expansion", "expansion", "command_substitution", *_COMPUTED)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "e": "\x1b"}


@dataclass(frozen=True, slots=True)
class Word:
    """`unset`: a shell without a value for its variables makes no word of it."""

    text: str
    line: int = 0
    unset: bool = False


@dataclass(slots=True)
class _Fields:
    """The words that one word of the script becomes. `pure`: so far only expansions without quotes made the last."""

    done: list[tuple[str, bool]] = field(default_factory=list)
    last: str | None = None
    pure: bool = True

    def literal(self, text: str) -> None:
        self.last = (self.last or "") + text
        self.pure = False

    def split(self, text: str) -> None:
        """An expansion without quotes: every space ends a word."""
        for part in re.split(r"([ \t\n]+)", text):
            if part.strip(" \t\n"):
                self.last = (self.last or "") + part
            elif part:
                self.end()

    def whole(self, text: str) -> None:
        """An expansion without quotes that nothing is known of."""
        self.last = (self.last or "") + text

    def end(self) -> None:
        if self.last is not None:
            self.done.append((self.last, self.pure and _REFERENCE.fullmatch(self.last) is not None))
        self.last, self.pure = None, True


@dataclass(slots=True)
class Variables:
    """The variables that a script has set so far. `spend` counts the characters that they put in, and raises where
    these are too many; `note` is told in words what was left out or taken. `exported`: the names of those that its
    commands see, in order. `soft`: those whose value depends on something that the script does not set. `positional`:
    the arguments of the function at hand, None for the script's own."""

    spend: Callable[[int], None] = lambda steps: None
    note: Callable[[str], None] = lambda words: None
    file: str = ""
    values: dict[str, list[str]] = field(default_factory=dict)
    exported: dict[str, None] = field(default_factory=dict)
    soft: set[str] = field(default_factory=set)
    positional: list[str] | None = None
    unsure: bool = False  # something unknown decided about the last expansion
    _depth: int = 0

    # -- words --------------------------------------------------------------------------------------------------------

    def words(self, nodes: Sequence[Node]) -> Iterator[Word]:
        """The words that a shell makes of these nodes; some that touch each other are one word."""
        fields = _Fields()
        for node, behind in zip_longest(nodes, nodes[1:]):
            self._piece(node, fields, quoted=False)
            if behind is not None and behind.start_byte == node.end_byte:
                continue
            fields.end()
            for text, unset in fields.done:
                self.spend(WORD + len(text) // 64)
                yield Word(text.replace(OPEN, "<").replace(CLOSE, ">"), node.start_point[0] + 1, unset)
            fields.done.clear()

    def text(self, node: Node | None) -> str:
        """The text of a value, which a shell does not split."""
        self.unsure = False
        fields = _Fields()
        if node is not None:
            self._piece(node, fields, quoted=True)
        fields.end()
        return " ".join(text for text, _ in fields.done).replace(OPEN, "<").replace(CLOSE, ">")

    def _piece(self, node: Node, fields: _Fields, *, quoted: bool) -> None:
        kind, text = node.type, (node.text or b"").decode("utf-8", "replace")
        if kind == "string":
            fields.literal("")
            self._inside(node, fields, (node.start_byte + 1, node.end_byte - 1), quoted=True)
        elif kind == "raw_string":
            fields.literal(text[1:-1].replace("${", "$${"))  # no reference: a launch block writes it so
        elif kind == "ansi_c_string":
            fields.literal(
                re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text[2:-1], flags=re.DOTALL)
            )
        elif kind == "simple_expansion":
            self._value(text[1:], None, text, fields, quoted)
        elif kind == "expansion":
            self._braced(text, fields, quoted)
        elif kind == "command_substitution":
            known, output = self._output(node)
            self._put(output, fields, quoted) if known or quoted else fields.whole(output)
        elif kind in _COMPUTED:
            fields.literal(text)
            self.unsure = True
        elif kind in ("concatenation", "translated_string", "command_name", "heredoc_body"):
            self._inside(node, fields, (node.start_byte, node.end_byte), quoted=quoted or kind == "heredoc_body")
        else:
            fields.literal(re.sub(r"\\(\n|.)", lambda m: "" if m[1] == "\n" else m[1], text, flags=re.DOTALL))

    def _inside(self, node: Node, fields: _Fields, span: tuple[int, int], *, quoted: bool) -> None:
        """The pieces of a node, and what stands between them, which the grammar does not always give as pieces."""
        data, first = node.text or b"", node.start_byte
        literal = node.type in ("string", "heredoc_body")
        at = span[0]
        for piece in node.named_children:
            if literal and piece.type not in _EXPANDED:
                continue
            self._between(data[at - first : piece.start_byte - first], fields, quoted)
            self._piece(piece, fields, quoted=quoted)
            at = piece.end_byte
        self._between(data[at - first : span[1] - first], fields, quoted)

    def _between(self, data: bytes, fields: _Fields, quoted: bool) -> None:
        text = data.decode("utf-8", "replace")
        if quoted:
            text = text.replace("\\${", "$${")
            text = re.sub(r'\\(["\\$`\n])', lambda m: "" if m[1] == "\n" else m[1], text)
        if text and quoted:
            fields.literal(text)
        elif text:
            fields.split(text)

    # -- expansions ---------------------------------------------------------------------------------------------------

    def known(self, name: str, index: str | None = None) -> list[str] | None:
        """The words that a variable holds; None if the script does not set it."""
        if name in ("@", "*") or (name.isdigit() and name != "0"):
            if self.positional is None:
                return None
            return self.positional if not name.isdigit() else self.positional[int(name[:4]) - 1 : int(name[:4])] or [""]
        found = self.values.get(name)
        if found is None or index in ("@", "*"):
            return found
        at = int(index[:4]) if index is not None and index.isdigit() else 0
        return found[at : at + 1] or [""]

    def _value(self, name: str, index: str | None, raw: str, fields: _Fields, quoted: bool) -> None:
        found = self.known(name, index)
        self.unsure = self.unsure or found is None or name in self.soft
        several = name == "@" or index == "@" or (not quoted and (name == "*" or index == "*"))
        if found is None:
            if several and quoted:  # "$@" of the script, "${A[@]}" of an array that it does not set
                fields.last = fields.last or None
            elif name not in "@*":
                self._put(f"${{{name}}}" if re.fullmatch(r"\w+", name) else raw, fields, quoted)
        elif several:
            for number, value in enumerate(found):
                if number:
                    fields.end()
                self._put(value, fields, quoted)
            if quoted and not found and fields.last == "":
                fields.last = None  # "${A[@]}" of an empty array is no word
        else:
            self._put(" ".join(found), fields, quoted)

    def _put(self, text: str, fields: _Fields, quoted: bool) -> None:
        if len(text) + len(fields.last or "") > _MOST_TEXT:
            self.note(f"a value of more than {_MOST_TEXT:,} characters is left out")
            fields.last = None
            return
        self.spend(len(text))
        if quoted:
            fields.literal(text)
        elif _SUBSTITUTION.fullmatch(text):  # what it prints is not known: one word
            fields.whole(text)
        else:
            fields.split(text)

    def _braced(self, raw: str, fields: _Fields, quoted: bool) -> None:
        """`${NAME}` and its forms."""
        match = _EXPANSION.fullmatch(raw)
        if match is None or match["sign"]:
            self._put(raw, fields, quoted)
            self.unsure = True
            return
        name, index, op, rest = match["name"], match["index"], match["op"], match["rest"] or ""
        found = self.known(name, index)
        given = "".join(found) if found is not None and op is not None and op[0] == ":" else found
        self.unsure = self.unsure or found is None or name in self.soft
        if op is None:
            self._value(name, index, raw, fields, quoted)
        elif op in ("+", ":+"):
            self._alternative(name, rest, fields, quoted, bool(given), known=found is not None)
        elif op in ("-", ":-", "=", ":="):
            if (given is not None) if op[0] != ":" else given:
                self._value(name, index, raw, fields, quoted)
                return
            if not rest and found is None and not quoted:
                self.note(f"${{{name}}} is left out: it is not set here")
            if op[-1] == "=":
                self.values[name] = [self._pattern(rest)]
                self._put(self.values[name][0], fields, quoted)
            else:
                self._operand(rest, fields, quoted)
        elif op == ":" and found is not None and (name == "@" or index == "@") and rest.strip().isdigit():
            part = found[max(int(rest[:6]) - (name == "@"), 0) :]  # "${@:2}" begins with the second argument
            fields.last = fields.last or None
            for number, value in enumerate(part):
                if number:
                    fields.end()
                self._put(value, fields, quoted)
        elif op in ("?", ":?"):
            self._value(name, index, raw, fields, quoted)
        elif found is None:
            self._put(raw, fields, quoted)
        else:
            self._put(_changed(" ".join(found), op, self._pattern(rest), raw), fields, quoted)

    def _alternative(self, name: str, rest: str, fields: _Fields, quoted: bool, given: bool, *, known: bool) -> None:
        """`${NAME:+...}`: nothing where the variable is not set, unless what is put in speaks of the variable itself:
        `${HF_TOKEN:+-e HF_TOKEN=$HF_TOKEN}` is meant for a machine that has it."""
        if known and given:
            self._operand(rest, fields, quoted)
        elif not known and re.search(rf"\$\{{?{re.escape(name)}\b", rest):
            self.note(f"what ${{{name}:+...}} puts in is kept: set {name} where the engine is started")
            self._operand(rest, fields, quoted)
        elif not known:
            self.note(f"what ${{{name}:+...}} puts in is left out: {name} is not set here")

    def _operand(self, text: str, fields: _Fields, quoted: bool) -> None:
        """What an expansion puts in: quotes and further expansions count, and outside of quotes its spaces do."""
        if self._depth >= _DEEPEST or not re.search(r"[\"'$`\\]", text):
            self._put(text, fields, quoted)
            return
        self.spend(len(text))
        inner = text.replace('"', "") if quoted else text
        root = parsed(f': "{inner}"' if quoted else f": {inner}", self.file)
        command = root.named_children[0] if root is not None and root.named_child_count == 1 else None
        if command is None or command.has_error or command.type != "command":
            self._put(text, fields, quoted)
            self.unsure = True
            return
        self._depth += 1
        at = None
        for node in command.named_children[1:]:
            if at is not None and at < node.start_byte and not quoted:
                fields.end()
            self._piece(node, fields, quoted=quoted)
            at = node.end_byte
        self._depth -= 1

    def _pattern(self, text: str) -> str:
        fields = _Fields()
        self._operand(text, fields, quoted=True)
        fields.end()
        return "".join(part for part, _ in fields.done)

    def _output(self, node: Node) -> tuple[bool, str]:
        """What `$(cat <<E ...)` and `$(echo ...)` print; any other command stays as it is written, and is not known."""
        inner = node.named_children
        if len(inner) == 1 and inner[0].type == "redirected_statement":
            if (body := heredoc(inner[0])) is not None and source(inner[0].named_children[0]) == "cat":
                return True, self.here(body).rstrip("\n")
        elif len(inner) == 1 and inner[0].type == "command":
            found = [word.text for word in self.words(inner[0].children)]
            if found[:1] == ["echo"] and not any(word.startswith("-") for word in found[1:2]):
                return True, " ".join(found[1:])
        self.unsure = True
        return False, source(node)

    def here(self, redirect: Node) -> str:
        """The text of a here-document or a here-string; expansions count unless its end is quoted."""
        if redirect.type == "herestring_redirect":
            return self.text(next(iter(redirect.named_children), None))
        parts = {part.type: part for part in redirect.named_children}
        body = parts.get("heredoc_body")
        if body is None:
            return ""
        plain = re.search(r"[\"'\\]", source(parts["heredoc_start"])) is not None
        text = source(body).replace("${", "$${") if plain else self.text(body)
        return re.sub(r"(?m)^\t+", "", text) if source(redirect).startswith("<<-") else text

    # -- assignments --------------------------------------------------------------------------------------------------

    def assign(self, node: Node) -> str:
        """Take `NAME=value`, `NAME+=value`, `NAME=(...)`. Returns the name."""
        target, value = node.named_children[0], node.child_by_field_name("value")
        name, adds = source(target), any(child.type == "+=" for child in node.children)
        if target.type == "subscript":  # a table: no word of it is known afterwards
            name = name.partition("[")[0]
            self.values.pop(name, None)
            return name
        before = self.values.get(name, []) if adds else []
        if value is not None and value.type == "array":
            self.spend(len(before) * WORD)
            self.unsure = False
            inner = [one for one in value.children[1:-1] if one.type != "comment"]
            words = without_unset(list(self.words(inner)), self.note)
            self.values[name] = [*before, *(word.text for word in words)][:_MOST_WORDS]
        else:
            text = self.text(value)
            self.spend(sum(map(len, before)))
            if before and len(before) > 1:
                before = [before[0] + text, *before[1:]]
            self.values[name] = before if len(before) > 1 else [("".join(before) + text)[:_MOST_TEXT]]
        self.soft = self.soft | {name} if self.unsure else self.soft if adds else self.soft - {name}
        return name


def without_unset(words: Sequence[Word], note: Callable[[str], None]) -> list[Word]:
    """The words that are there where the file's own variables alone are set: a variable without a value is a word only
    behind a flag that takes one, since the line would make no sense without it."""
    kept: list[Word] = []
    for word in words:
        if word.unset and not (kept and _takes_value(kept[-1])):
            note(f"{word.text} is left out: it is not set here")
        else:
            kept.append(word)
    return kept


def _takes_value(word: Word) -> bool:
    """Whether the word is a flag of docker or vLLM that takes the next word, or one that neither has."""
    if not word.text.startswith("-") or "=" in word.text or word.unset:
        return False
    known = vllm_flags().by_option.get(word.text)
    if known is not None:
        return known[0].kind != "switch"
    return read_docker_run([word.text, word.text.lstrip("-")]).image is None


def _changed(text: str, op: str, pattern: str, raw: str) -> str:
    """`${NAME##*/}` and the like, for a known text."""
    if op in ("#", "##", "%", "%%"):
        ends = range(len(text) + 1) if op in ("#", "%%") else range(len(text), -1, -1)
        for end in ends if len(text) <= 500 else ():
            part = text[:end] if op[0] == "#" else text[end:]
            if fnmatch.fnmatchcase(part, pattern):
                return text[end:] if op[0] == "#" else text[:end]
        return text
    if op in ("/", "//") and not re.search(r"[*?\[\\]|^[#%]", pattern):
        old, _, new = pattern.partition("/") if not pattern.startswith("/") else ("/", "", pattern[2:])
        return text.replace(old, new, -1 if op == "//" else 1) if old else text
    if op in ("^^", ",,") and not pattern:
        return text.upper() if op == "^^" else text.lower()
    return raw
