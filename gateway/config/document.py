"""YAML 1.2 into plain data, with the line of every key and list member.

Own construction over ruamel's node tree: only `true` and `false` are booleans (`on`, `off`, `none` are words), there
are no timestamps, octals without `0o`, merge keys or tags, and a duplicate key is an error that names both lines.
"""

from __future__ import annotations

import math
import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import MappingEndEvent, MappingStartEvent, SequenceEndEvent, SequenceStartEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gateway.config.problems import Path, Problem, Report, dotted

MAX_BYTES = 1024 * 1024
MAX_NODES = 50_000  # anchors can multiply a small file into a huge tree
LARGE = 64 * 1024  # characters; a longer file is counted before it is built, which takes time and memory
MAX_DEPTH = 50  # mappings and lists inside each other; whatever walks the tree recurses
# The tags that the parser itself gives: any other one is written in the file, `!!binary` and `!!set` too.
_IMPLIED = ("map", "seq", "str", "null", "bool", "int", "float", "timestamp", "merge", "value")
_IMPLIED_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in _IMPLIED)
_INT = re.compile(r"[-+]?\d{1,18}", re.ASCII)
_BASED_INT = re.compile(r"0o[0-7]{1,18}|0x[0-9a-fA-F]{1,15}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?", re.ASCII)
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNQUOTED = re.compile(r"""[\[{,:]\s*\$\{[^}"']*\}""")


class Plain(str):
    """A string that stood unquoted in the file: after expansion of `${VAR}` it may turn out to be a number."""


def plain_value(text: str) -> Any:
    """What an unquoted scalar means: null, a boolean, a number, else the string itself."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _BASED_INT.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return Plain(text)


def read_document(text: str, report: Report, *, last_counts: bool = False) -> dict[str, Any] | None:
    """The top-level mapping, with `report.lines` filled in; None when the YAML is broken (reported). `last_counts`: of
    a key that stands there twice, as most programs read YAML; else it is a mistake."""
    if len(text) > MAX_BYTES:
        report.error((), f"larger than {MAX_BYTES // 1024} KiB")
        return None
    if len(text) > LARGE and (problem := _too_much(text, report.file)) is not None:
        report.errors.append(problem)
        return None
    try:
        root = YAML(typ="safe", pure=True).compose(text)
        builder = _Builder(report, last_counts=last_counts)
        data = builder.build(root, ()) if root is not None else {}
    except MarkedYAMLError as error:
        _report_syntax(error, text, report)
        return None
    except RecursionError:
        report.errors.append(_too_much(text, report.file) or Problem(report.file, None, "", _TOO_DEEP))
        return None
    except _Refused:
        return None
    except (YAMLError, ValueError, IndexError, AttributeError, AssertionError) as error:
        # ruamel's reader and scanner raise these for control characters and the odd malformed directive
        place = getattr(error, "position", None)
        line = text.count("\n", 0, place) + 1 if isinstance(place, int) else None
        message = "not YAML: control characters or a malformed directive"
        report.errors.append(Problem(report.file, line, "", message, type(error).__name__))
        return None
    if data is not None and not isinstance(data, dict):
        report.error((), "must be a mapping with `backends` and `aliases` at its top level")
        return None
    report.lines = builder.lines
    return data or {}


_TOO_DEEP = f"nested too deeply: at most {MAX_DEPTH} mappings and lists inside each other"
_TOO_MANY = f"far too large: over {MAX_NODES:,} values, those that aliases repeat included"


def _too_much(text: str, file: str) -> Problem | None:
    """The problem of a file that is nested too deeply or too large, found without recursion. Other mistakes are left to
    `read_document`."""
    depth = count = 0
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            if isinstance(event, MappingEndEvent | SequenceEndEvent):
                depth -= 1
                continue
            depth += isinstance(event, MappingStartEvent | SequenceStartEvent)
            count += 1
            if depth > MAX_DEPTH or count > 2 * MAX_NODES:  # keys count too
                return Problem(file, int(event.start_mark.line) + 1, "", _TOO_DEEP if depth > MAX_DEPTH else _TOO_MANY)
    except (YAMLError, ValueError, IndexError, AttributeError, AssertionError, RecursionError):
        pass
    return None


class _Refused(Exception):
    """Reading stops here; the reason is in the report."""


class _Builder:
    def __init__(self, report: Report, *, last_counts: bool = False) -> None:
        self.report, self.last_counts = report, last_counts
        self.lines: dict[Path, int] = {}
        self.open: set[int] = set()  # ids of the nodes being built; a node met again contains itself
        self.count = 0

    def build(self, node: Node, path: Path) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        self.count += 1
        if self.count > MAX_NODES:
            self._error(line, path, _TOO_MANY)
            raise _Refused
        if id(node) in self.open:
            self._error(line, path, "an anchor that contains itself makes this endless")
            return None
        if len(self.open) > MAX_DEPTH:
            self._error(line, path[:3], _TOO_DEEP)
            raise _Refused
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if str(node.tag) not in _IMPLIED_TAGS:
            self._error(line, path, "tags have no meaning here", "remove the word that starts with '!'")
        self.open.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self._mapping(node, path)
            assert isinstance(node, SequenceNode)
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        finally:
            self.open.discard(id(node))

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode) or not str(key_node.value).strip():
                self._error(line, path, "a key must be a word")
                continue
            key = self._text(key_node, path)
            here = (*path, key)
            if key in built and not self.last_counts:
                self._error(line, here, f"duplicate key, first on line {self.lines[here]}", "only one can be meant")
                continue
            self.lines[here] = line
            built[key] = self.build(value_node, here)
        return built

    def _scalar(self, node: ScalarNode, path: Path) -> Any:
        text = self._text(node, path)
        quoted = node.style in ("'", '"', "|", ">")
        if str(node.tag) not in _IMPLIED_TAGS:
            self._error(
                node.start_mark.line + 1, path, "tags have no meaning here", "quote a value that starts with '!'"
            )
            return text
        value = text if quoted else plain_value(text)
        if isinstance(value, float) and math.isinf(value):
            self._error(node.start_mark.line + 1, path, "a number that is too large")
        return value

    def _text(self, node: ScalarNode, path: Path) -> str:
        """The text of a scalar with surrogate pairs joined: JSON may write one character as two `\\u` escapes, and YAML
        keeps the two apart."""
        text = str(node.value)
        if not _SURROGATE.search(text):
            return text
        try:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            self._error(node.start_mark.line + 1, path, "half a character: a \\ud8xx escape without its other half")
            return _SURROGATE.sub("?", text)

    def _error(self, line: int, path: Path, message: str, hint: str | None = None) -> None:
        self.report.errors.append(Problem(self.report.file, line, dotted(path), message, hint))


def _report_syntax(error: MarkedYAMLError, text: str, report: Report) -> None:
    """Reports a syntax error without quoting the file, because the line may hold a secret."""
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    lines = text.splitlines()
    problem = str(error.problem or "")
    if "'{'" in problem:
        first = error.context_mark.line if error.context_mark else 0
        # the place where the parser stopped, and the other places where it would stop next
        found = [i for i, content in enumerate(lines, 1) if _UNQUOTED.search(content) and _in_flow(content)]
        found = found or [i for i in range(first + 1, (line or first) + 1) if "${" in lines[i - 1]]
        for number in found:
            message = "${...} inside {} or [] must be quoted"
            report.errors.append(Problem(report.file, number, "", message, 'write "${NAME}"'))
        if found:
            return
    for stray, said, advice in _STRAYS:
        if (found_at := next((i for i, content in enumerate(lines, 1) if stray.match(content)), None)) is not None:
            report.errors.append(Problem(report.file, found_at, "", said, advice))
            return
    message, hint = _plain_words(problem, str(error.context or ""))
    opened = error.context_mark.line + 1 if error.context_mark else line
    if (quote := _open_quote(lines, line or len(lines))) is not None:
        line, message, hint = quote, "a quote that is never closed", "close it on its line"
    elif unspaced := [
        one for one in (opened, (line or 1) - 1) if one and _UNSPACED.match("".join(lines[one - 1 : one]))
    ]:
        line, message, hint = unspaced[0], "no space behind the ':' of a key", "write KEY: VALUE"
    elif "expected ':'" in problem:
        line = opened  # where the word stands that would be a key
    elif "stream end" in problem or "end of stream" in problem:
        line = opened
    elif "bracket" in message and opened != line:
        message += f", opened on line {opened}"
    report.errors.append(Problem(report.file, line, "", message, hint))


def _open_quote(lines: list[str], last: int) -> int | None:
    """The first line up to `last` with a quote that is closed nowhere, or inside a later value; None = there is none.
    (Quoted text may go on over several lines, but then nothing stands behind its end.)"""
    number, at = 0, 0
    while number < min(last, len(lines)):
        opening = _OPENING.search(lines[number], at)
        if opening is None or _COMMENT.search(lines[number], at, opening.start(1)):
            number, at = number + 1, 0
            continue
        opened, rest = number, _CLOSED[opening[1]]
        end = rest.match(lines[number], opening.end())
        while end is None and number + 1 < len(lines):
            number += 1
            end = rest.match(lines[number])
        if end is None or (number > opened and not _BEHIND.match(lines[number], end.end())):
            return opened + 1
        at = end.end()
    return None


_STRAYS = (  # a line that is no YAML, what it is, and what to do
    (re.compile(r"(<{7}|={7}|>{7}|\|{7})( |$)"), "a conflict that git has left", "keep one side, without its marks"),
    (re.compile(r" *[^\S \t]"), "a character that only looks like a space", "YAML is indented with plain spaces"),
)
_UNSPACED = re.compile(r"\s*\w[\w.-]*:[^\s/]")
_OPENING = re.compile(r"""(?:^\s*|[:,\[{-]\s+|[\[{]\s*)(["'])""")
_COMMENT = re.compile(r"(?:^|\s)#")
_CLOSED = {'"': re.compile(r'(?:[^"\\]|\\.)*"'), "'": re.compile(r"(?:[^']|'')*'")}
_BEHIND = re.compile(r"\s*(?:$|#|[,\]}:])")


def _in_flow(line: str) -> bool:
    before = line[: line.index("${")]
    return "#" not in before and ("{" in before or "[" in before)


_SAID: tuple[tuple[str, str, str | None], ...] = (  # a word of the parser, and what it means
    ("'\\t'", "a tab", "YAML is indented with spaces"),
    (
        "undefined alias",
        "a value that starts with '*' must be quoted",
        "to YAML it is a reference: write it in quotes",
    ),
    ("another document", "a second document ('---')", "the file holds one"),
    ("end of stream", "a quote, '{' or '[' that is never closed", None),
    ("stream end", "a quote, '{' or '[' that is never closed", None),
    ("expected ':'", "a key without ':'", None),
    ("cannot start any token", "a value that starts with a character YAML reserves", "quote it"),
    ("expected ',' or", "',' or a closing bracket is missing{context}", None),
    ("block end", "lines that do not line up", "keys of one mapping start in the same column"),
)


def _plain_words(problem: str, context: str) -> tuple[str, str | None]:
    if "mapping values are not allowed" in problem:
        return "a ':' where no key can be", "quote a value that contains ': ', and check the indentation"
    if "scanning an alias" in context or "scanning an anchor" in context:
        mark = "*" if "alias" in context else "&"
        return f"a value that starts with '{mark}' must be quoted", f'write it in quotes, as in "{mark}"'
    where = f" ({context})" if context else ""
    found = ((message.replace("{context}", where), hint) for word, message, hint in _SAID if word in problem)
    return next(found, ("not YAML", None))
