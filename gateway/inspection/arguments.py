"""The arguments of one call as they arrive: passed on while they are the beginning of a JSON object, and mended from
the first character on that is not."""

from __future__ import annotations

import json
import re

CHECKED_MOST = 1 << 20  # characters; what is longer is passed on as it comes
_SPACE = re.compile(r"[ \t\n\r]*+")
_IN_STRING = re.compile(r'(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+')
_ESCAPE_BEGUN = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_WORD = re.compile(r'[^\s,:{}\[\]"]+')
_FULL = re.compile(r"true|false|null|-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?", re.ASCII)
_BEGUN = re.compile(
    r"t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?"
    r"|-?(?:0|[1-9]\d*+)?(?:(?<=\d)\.\d*+)?(?:(?<=\d)[eE][+-]?\d*+)?",
    re.ASCII,
)
_CLOSES = {"}": "{", "]": "["}
_MARK = re.compile(r"(?:</?[\w:]{1,40}>|<\|[\w ]{1,40}\|>|```)\Z")  # of the model, behind the arguments
_MARK_MOST = 64  # characters
_MARKS_MOST = 8
MENDED_MOST = 128 * 1024  # characters that are mended; more are left as they came
_WRAPPED = re.compile(r"\A```(?:json)?\s*")


class Arguments:
    """Pieces go into `feed`, which returns the text to pass on; `finish` returns the rest. A comma is passed on with
    what follows it, because it may have to go, and a word (true, 12) when it is whole. `mended`: the rest differs from
    what came; `whole`: all that was passed on is a JSON object, or too long to tell."""

    def __init__(self) -> None:
        self._all = ""
        self._at = 0  # up to here the text is read
        self._sent = 0
        self._unsure = -1  # where a comma is that nothing follows yet, or a word that may go on
        self._expects = "object"
        self._open: list[str] = []  # the brackets that are open
        self._in_string = False
        self._broken = False
        self._too_long = False
        self.mended = False
        self.whole = False

    @property
    def empty(self) -> bool:
        return not (self._too_long or self._all.strip())

    def passes(self, piece: str) -> bool:
        """Instead of `feed`, where that would return the piece itself: then it is added. False: nothing was done."""
        if self._broken or self._sent < len(self._all) or len(self._all) > CHECKED_MOST:
            return self._too_long
        before = self._at, self._expects, self._in_string, [*self._open]
        self._read(piece)
        if self._limit() == len(self._all):
            self._sent = len(self._all)
            return True
        self._at, self._expects, self._in_string, self._open = before
        self._all, self._broken, self._unsure = self._all[: self._sent], False, -1
        return False

    def begin(self, text: str) -> None:
        """All of this text has been passed on already."""
        self._read(text)
        self._sent = len(self._all)

    def feed(self, piece: str) -> str:
        if self._too_long:
            return piece
        self._read(piece)
        if len(self._all) > CHECKED_MOST:
            text, self._all, self._sent, self._too_long = self._all[self._sent :], "", 0, True
            return text
        limit = max(self._sent, self._limit())
        text, self._sent = self._all[self._sent : limit], limit
        return text

    def rest(self) -> str:
        """The text that was not passed on, as it came."""
        return self._all[self._sent :]

    def finish(self) -> str:
        """The rest of the text, mended if that makes an object of the arguments."""
        if self._too_long:
            self.whole = True
            return ""
        sent, rest = self._all[: self._sent], self._all[self._sent :]
        self._sent = len(self._all)
        if is_object(sent + rest):
            self.whole = True
            return rest
        if len(rest) > MENDED_MOST:
            return rest
        inner = object_in(rest) if not sent.strip() else None
        for candidate in (inner, "", _mended(_without_marks(rest), inside=self._broken and self._in_string)):
            if candidate is not None and is_object(sent + candidate) and (candidate or not _is_another(sent, rest)):
                self.mended = self.whole = True
                return candidate
        return rest

    def _limit(self) -> int:
        """Up to where the text may be passed on."""
        if not self._sent and self._all.lstrip()[:2] == "{}":
            return 0  # some servers begin with an empty object, and write the arguments behind it
        if self._broken:
            return self._at
        return self._unsure if self._unsure >= 0 else len(self._all)

    def _read(self, piece: str) -> None:
        self._all += piece
        while not self._broken and self._at < len(self._all):
            at = self._at
            if not (self._read_string() if self._in_string else self._read_token()) or self._at == at:
                break

    def _read_string(self) -> bool:
        """Read on inside a string. False: more text is needed, or the text is broken here."""
        text = self._all
        found = _IN_STRING.match(text, self._at)
        self._at = at = found.end() if found is not None else self._at
        if at == len(text):
            return False
        if text[at] == '"':
            self._in_string, self._at = False, at + 1
            self._expects = "colon" if self._expects == "key" else "more"
            return True
        self._broken = _ESCAPE_BEGUN.match(text, at) is None
        return False

    def _read_token(self) -> bool:
        text = self._all
        space = _SPACE.match(text, self._at)
        at = space.end() if space is not None else self._at
        if at == len(text):
            self._at = at
            return False
        char, expects = text[at], self._expects
        after = self._after(char, expects)
        if after is not None:
            self._unsure = at if char == "," else -1
            self._expects, self._at = after, at + 1
            return True
        word = _WORD.match(text, at) if expects in ("value", "value or end") else None
        if word is not None and word.end() == len(text) and _BEGUN.fullmatch(word[0]):
            self._unsure = self._unsure if self._unsure >= 0 else at
            return False
        if word is not None and _FULL.fullmatch(word[0]):
            self._unsure, self._expects, self._at = -1, "more", word.end()
            return True
        self._broken = True
        self._at = self._unsure if self._unsure >= 0 else at
        return False

    def _after(self, char: str, expects: str) -> str | None:
        """What is expected behind this character; None: it may not stand here, or it begins a word."""
        if char == '"' and expects in ("key", "key or end", "value", "value or end"):
            self._in_string = True
            return "key" if expects.startswith("key") else "value"
        if char == "{" and expects in ("object", "value", "value or end"):
            self._open.append(char)
            return "key or end"
        if char == "[" and expects in ("value", "value or end"):
            self._open.append(char)
            return "value or end"
        if char == ":" and expects == "colon":
            return "value"
        if char == "," and expects == "more" and self._open:
            return "key" if self._open[-1] == "{" else "value"
        ends = (
            expects == "more"
            or (char == "}" and expects == "key or end")
            or (char == "]" and expects == "value or end")
        )
        if char in _CLOSES and ends and self._open and self._open[-1] == _CLOSES[char]:
            self._open.pop()
            return "more"
        return None


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _without_marks(text: str) -> str:
    """The text without the marks of the model at its end."""
    text = text.rstrip()
    for _ in range(_MARKS_MOST):
        if (mark := _MARK.search(text[-_MARK_MOST:])) is None:
            break
        text = text[: len(text) - len(mark[0])].rstrip()
    return text


def object_in(text: str) -> str | None:
    """The JSON object that is in this text as a string, in a fence, or behind an empty one; {} for null. None: it is
    something else."""
    text = _WRAPPED.sub("", text.strip())
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text)
        if value == {} and text[end:].lstrip()[:1] == "{":
            text = text[end:].lstrip()
            value, end = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return None
    if value is None:
        return "{}"
    if isinstance(value, str):
        return value if is_object(value) else None
    return text[:end] if is_object(text[:end]) and not _is_another(text[:end], text[end:]) else None


def _is_another(arguments: str, rest: str) -> bool:
    """Is what stands behind the arguments an object of its own?"""
    return is_object(rest) and json.loads(rest) != json.loads(arguments)


_TRAILING_COMMA = re.compile(r",\s*+[}\]]")
_BARE = re.compile(r"""[^,:{}\[\]"'\n]+""")
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_CONTROL = re.compile(r"[\x00-\x1f]")
_QUOTED = re.compile(r"'((?:[^'\\]++|\\.)*+)'", re.DOTALL)
_STRING = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)


def _mended(text: str, *, inside: bool) -> str:
    """The text with its strings as JSON writes them, bare words quoted, and commas before a closing bracket taken out.
    `inside`: it begins inside a string."""
    out: list[str] = []
    at = 0
    if inside:
        found = _STRING.match('"' + text)
        if found is None:
            return text
        out.append(_controlled(found[1]) + '"')
        at = found.end() - 1
    while at < len(text):
        string, quoted, bare = _STRING.match(text, at), _QUOTED.match(text, at), _BARE.match(text, at)
        if string is not None:
            out.append(f'"{_controlled(string[1])}"')
            at = string.end()
        elif quoted is not None:
            out.append(json.dumps(quoted[1].replace("\\'", "'"), ensure_ascii=False))
            at = quoted.end()
        elif bare is not None:
            out.append(_bare(bare[0]))
            at = bare.end()
        else:
            out += [] if _TRAILING_COMMA.match(text, at) else [text[at]]
            at += 1
    return "".join(out)


def _bare(text: str) -> str:
    word = text.strip()
    if not word or _FULL.fullmatch(word):
        return text
    return text.replace(word, _PYTHON.get(word) or json.dumps(word, ensure_ascii=False))


def _controlled(text: str) -> str:
    """The inside of a string with its control characters as escapes."""
    return _CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], text)
