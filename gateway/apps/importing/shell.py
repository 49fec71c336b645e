"""The commands of a shell script, with the line of every word: enough of the shell to find what starts an engine.

Quotes, continued lines, comments, here-documents, redirections, separators and arrays are read; variables that the
script sets are put in (`Variables`). Nothing is run, and conditions and loops are not followed: every command counts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

# A `$` between single quotes or behind a backslash, until the variables are put in.
_PLAIN_DOLLAR = "\ue000"
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.ASCII | re.DOTALL)
# `vllm serve <MODEL>`, as instructions have it: no shell means that.
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w-]*>")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(\[[@*]\])?(?:(:?[-=?+])([^{}]*))?\}|([A-Za-z_]\w*))", re.ASCII)
_WHOLE = re.compile(r"\$(?:\{(\w+)(?:\[[@*]\])?\}|([A-Za-z_]\w*))", re.ASCII)
_MOST_TEXT = 64 * 1024  # characters that variables put into one word, and words of an array: a script may double both
_MOST_WORDS = 10_000
WORD = 2  # what a word costs, in characters
KEYWORDS = frozenset(("if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "!"))
WRAPPERS = frozenset(("exec", "nohup", "time", "command", "export", "readonly", "local", "declare"))


@dataclass(frozen=True, slots=True)
class Word:
    """`quoted`: some of it stood in quotes, so that a value put in is not split."""

    text: str
    line: int
    quoted: bool = False


@dataclass(slots=True)
class _ShellReader:
    text: str
    at: int = 0
    line: int = 1
    commands: list[list[Word]] = field(default_factory=lambda: [[]])
    word: list[str] = field(default_factory=list)
    begun: int | None = None  # the line on which the word begins
    quoted: bool = False
    skipped: bool = False  # the next word is the target of a redirection
    heredocs: list[str] = field(default_factory=list)
    ends_heredoc: bool = False  # the next word ends a here-document
    in_array: bool = False

    def read(self) -> list[list[Word]]:
        while self.at < len(self.text):
            self._step(self.text[self.at])
        self._end_word()
        return [command for command in self.commands if command]

    def _take(self, count: int = 1) -> str:
        taken = self.text[self.at : self.at + count]
        self.at += count
        self.line += taken.count("\n")
        return taken

    def _add(self, text: str, *, quoted: bool = False) -> None:
        self.begun = self.line if self.begun is None else self.begun
        self.quoted = self.quoted or quoted
        self.word.append(text)

    def _step(self, char: str) -> None:
        if char == "\\":
            self._backslash()
        elif char in "'\"":
            self._quote(char)
        elif char == "$":
            self._dollar()
        elif char == "`":
            self._add(self._until("`"))
        elif char in " \t\r":
            self._end_word()
            self._take()
        elif char == "#" and self.begun is None:
            self._take(self._line_end() - self.at)
        elif char in "\n;|":
            self._end_command()
        elif char == "&":
            self._ampersand()
        elif char in "<>":
            self._redirection()
        elif char == "(" and self.word and _ASSIGNMENT.fullmatch("".join(self.word)) and self.word[-1].endswith("="):
            self._add(self._take())
            self._end_word()
            self.in_array = True
        elif char in "()":
            self._parenthesis()
        else:
            self._add(char)
            self._take()

    def _parenthesis(self) -> None:
        """The end of an array stays as a word of its own; other parentheses only separate commands."""
        if self._peek() == ")" and self.in_array:
            self.in_array = False
            self._end_word()
            self._add(self._take())
            self._end_word()
        else:
            self._end_command()

    def _line_end(self) -> int:
        end = self.text.find("\n", self.at)
        return end if end >= 0 else len(self.text)

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _backslash(self) -> None:
        if match := re.compile(r"\\[ \t\r]*\n").match(self.text, self.at):  # spaces behind it were not meant
            self._take(len(match[0]))
            self._end_word_before_indent()
            return
        self._take()
        char = self._take()
        self._add(_PLAIN_DOLLAR if char == "$" else char, quoted=True)

    def _end_word_before_indent(self) -> None:
        if self._peek() in " \t":
            self._end_word()

    def _quote(self, quote: str) -> None:
        self._add("", quoted=True)
        start = self.line
        self._take()
        found: list[str] = []
        while self.at < len(self.text) and self._peek() != quote:
            char = self._take()
            if quote == '"' and char == "\\" and self._peek() in ('"', "\\", "$", "`", "\n"):
                escaped = self._take()
                char = {"\n": "", "$": _PLAIN_DOLLAR}.get(escaped, escaped)
            elif quote == "'" and char == "$":
                char = _PLAIN_DOLLAR
            found.append(char)
        self._take()
        self.begun = start if self.begun is None else self.begun
        self.word.append("".join(found))

    def _dollar(self) -> None:
        if self.text.startswith("$(", self.at):
            self._add(self._balanced("(", ")"))
        elif self.text.startswith("${", self.at):
            self._add(self._balanced("{", "}"))
        else:
            self._add(self._take())

    def _balanced(self, opening: str, closing: str) -> str:
        depth, end = 0, self.at
        while end < len(self.text):
            depth += {opening: 1, closing: -1}.get(self.text[end], 0)
            end += 1
            if not depth and self.text[end - 1] == closing:
                break
        return self._take(end - self.at)

    def _until(self, char: str) -> str:
        end = self.text.find(char, self.at + 1)
        return self._take((end if end >= 0 else len(self.text) - 1) - self.at + 1)

    def _ampersand(self) -> None:
        if self.text.startswith("&>", self.at):
            self._end_word()
            self._take()
            self._redirection()
        else:
            self._end_command()

    def _redirection(self) -> None:
        if placeholder := _PLACEHOLDER.match(self.text, self.at):
            self._add(self._take(len(placeholder[0])))
            return
        if "".join(self.word).isdigit() and not self.quoted:
            self.word, self.begun = [], None
        self._end_word()
        sign = re.compile(r"<<<|<<-?|[<>]+[&|]?").match(self.text, self.at)
        assert sign is not None
        self._take(len(sign[0]))
        self.skipped = True
        self.ends_heredoc = sign[0] in ("<<", "<<-")

    def _end_word(self) -> None:
        if self.begun is not None:
            text = "".join(self.word)
            if self.ends_heredoc:
                self.heredocs.append(text)
            if not self.skipped:
                self.commands[-1].append(Word(text, self.begun, self.quoted))
            self.skipped = self.ends_heredoc = False
        self.word, self.begun, self.quoted = [], None, False

    def _end_command(self) -> None:
        self._end_word()
        char = self._take()
        if char != "\n" or not self.in_array:
            self.commands.append([])
            self.in_array = False
        if char == "\n" and self.heredocs:
            self._skip_heredocs()

    def _skip_heredocs(self) -> None:
        for end in self.heredocs:
            while self.at < len(self.text):
                line = self._take(self._line_end() + 1 - self.at)
                if line.strip() == end:
                    break
        self.heredocs = []


def read_commands(text: str) -> list[list[Word]]:
    """The commands of a script, each as its words, variables not yet put in. Never raises."""
    return _ShellReader(text).read()


@dataclass(slots=True)
class Variables:
    """The variables that a script has set so far. `spend` counts the words and characters that they put in, and raises
    where these are too many. `exported`: the names of those that its commands see, in order."""

    values: dict[str, list[str]] = field(default_factory=dict)
    exported: dict[str, None] = field(default_factory=dict)
    room: int = 0  # characters that may still be put into the word at hand
    spend: Callable[[int], None] = lambda steps: None

    def text(self, word: str) -> str:
        """A word with the known variables put in; the others are written `${NAME}`. A default (`${A:-b}`) counts where
        the variable is not set."""
        self.room = _MOST_TEXT
        return _VARIABLE.sub(self._value, word).replace(_PLAIN_DOLLAR, "$")

    def _value(self, match: re.Match[str]) -> str:
        name = match[1] or match[5]
        if name in self.values:
            value = " ".join(self.values[name])
            self.room -= len(value)
            self.spend(len(value))
            return value if self.room >= 0 else f"${{{name}}}"
        return _unquoted(match[4]) if match[3] in ("-", ":-", "=", ":=") else f"${{{name}}}"

    def words(self, words: Sequence[Word]) -> Iterator[Word]:
        """The words with variables put in: an array gives several words, and so does text that is not in quotes."""
        for word in words:
            whole = _WHOLE.fullmatch(word.text)
            known = self.values.get(whole[1] or whole[2]) if whole else None
            if known is None:
                yield Word(self.text(word.text), word.line, word.quoted)
            elif word.quoted and len(known) == 1 and "[" not in word.text:
                yield Word(known[0], word.line, True)
            else:
                self.spend(len(known) * WORD if "[" in word.text else sum(map(len, known)))
                parts = known if "[" in word.text else [part for value in known for part in _split(value)]
                yield from (Word(part, word.line, True) for part in parts)

    def assign(self, words: Sequence[Word]) -> int:
        """Take the assignments at the beginning of a command. Returns how many words they are."""
        at = 0
        while at < len(words) and (match := _ASSIGNMENT.fullmatch(words[at].text)):
            name, adds, value = match.groups()
            before = self.values.get(name, []) if adds else []
            self.spend(sum(map(len, before)) if value != "(" else len(before) * WORD)
            if value == "(":
                end = next((i for i in range(at, len(words)) if words[i].text == ")"), len(words))
                inside = (word.text for word in self.words(words[at + 1 : end]))
                self.values[name] = [*before, *inside][:_MOST_WORDS]
                at = end + 1
                continue
            text = self.text(value)
            self.values[name] = [("".join(before) + text)[: max(_MOST_TEXT, len(text))]] if adds else [text]
            at += 1
        return at


def assigned(words: Sequence[Word]) -> dict[str, Word]:
    """The assignments in front of a command (`A=1 vllm serve m`), variables not put in."""
    found = {}
    for word in words:
        match = _ASSIGNMENT.fullmatch(word.text)
        if match is None or match[3] == "(":
            break
        found[match[1]] = Word(match[3], word.line, word.quoted)
    return found


def _unquoted(default: str) -> str:
    """`${A:-"b"}`: the shell takes the quotes around a default away."""
    quoted = len(default) > 1 and default[0] == default[-1] and default[0] in "'\""
    return default[1:-1] if quoted and default[0] not in default[1:-1] else default


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
