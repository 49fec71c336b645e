"""The arguments of `vllm serve`, read as argparse and vLLM's extension of it read them.

Underscores in names count as dashes. `--flag=value`, `-tp 2`, `--no-flag`, unique abbreviations, `-O3` and values of
several words are read, and the dotted form `--compilation-config.mode 3` that stands for JSON.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.launch.flags import Flag, FlagTable, ValueMistake, is_reference, json_or_text, one_typo_away, read_value
from gateway.launch.secrets import MASK, SECRET_FLAGS, is_secret_flag, masked_keys

MOST_DEPTH = 32  # of a dotted flag
_NEGATIVE = re.compile(r"-\d+$|-\d*\.\d+$")
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Mistake:
    """One word of a command line that is wrong, and why. `flag` is the flag's full name without dashes ("" for the line
    as a whole). `fix`: the words to write instead, which begin with a dash, or an advice. Secrets are masked in
    both."""

    severity: Literal["error", "warning"]
    rule: str
    flag: str
    message: str
    fix: str | None = None


@dataclass(slots=True)
class ParsedArguments:
    """The parsed arguments. `flags`: full name -> value; `unknown`: flags that this version does not have, as written
    -> the words after them; `positional`: the words that are no flag and no value of one; `private`: those of them that
    stand behind a flag with a secret, and may be one; `spans`: (full name, first word, word after the last) of every
    flag, in order. `dotted`: flags that were written by their members; `at`: the word that is read next."""

    words: list[str]
    table: FlagTable
    flags: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, tuple[str, ...]] = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)
    private: set[str] = field(default_factory=set)
    mistakes: list[Mistake] = field(default_factory=list)
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    dotted: dict[str, Any] = field(default_factory=dict)
    at: int = 0

    def read(self) -> None:
        name = ""
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if word == "--":
                self.positional += self.words[self.at :]
                break
            if not self._is_option(word):
                self.positional.append(word)
                # the values of a flag with a secret, also of one that is misspelt
                secret = name in SECRET_FLAGS if name in self.table.flags else is_secret_flag(name)
                self.private |= {word} if secret else set()
                continue
            start = self.at - 1
            name = self._dotted(word) if "." in word.partition("=")[0] else self._option(word)
            self.spans.append((name, start, self.at))
        for name, value in self.dotted.items():
            self._keep(name, value)
        for name, value in self.flags.items():
            self._check_range(self.table.flags[name], value)

    def _is_option(self, word: str) -> bool:
        """Does a word begin a flag? By argparse's rules a lone dash, a negative number, and words with a space that
        begin no flag are values."""
        if not word.startswith("-") or word == "-" or _NEGATIVE.match(word):
            return False
        name = word.partition("=")[0]
        return " " not in word or any(option.startswith(name) for option in self.table.by_option)

    # -- one flag -------------------------------------------------------------------------------------------------

    def _option(self, word: str) -> str:
        """Reads one flag with its values, and gives its full name."""
        if re.match(r"-O.", word):
            word = f"--optimization-level={word[3:] if word[2] == '=' else word[2:]}"
        elif word == "-O":
            word = "--optimization-level"
        name, equals, value = word.partition("=")
        known = self._known(name, [value] if equals else None)
        if known is None:
            return name.lstrip("-")
        flag, negated = known
        if flag.kind == "switch":
            if equals:
                fix = f"--{flag.name}" if value.lower() in ("true", "1") else f"--no-{flag.name}"
                self._mistake("error", "flag-value", flag.name, f"{name} is a switch and takes no value", fix)
            self._keep(flag.name, not negated)
            return flag.name
        texts = [value] if equals else self._values(flag)
        if not texts and not flag.optional:
            self._mistake("error", "flag-value", flag.name, f"{name} needs a value, and none follows")
            return flag.name
        values = [read for text in texts if (read := self._value_of(flag, text)) is not _REFUSED]
        if flag.repeated:
            self.flags[flag.name] = [*self.flags.get(flag.name, ()), *values]
        elif values or not texts:
            self._keep(flag.name, values if flag.many else values[0] if values else None)
        return flag.name

    def _values(self, flag: Flag) -> list[str]:
        """The words after a flag that are its values."""
        texts: list[str] = []
        most = len(self.words) if flag.many else 1
        while self.at < len(self.words) and len(texts) < most and not self._is_option(self.words[self.at]):
            if self.words[self.at] == "--":
                break
            texts.append(self.words[self.at])
            self.at += 1
        return texts

    def _value_of(self, flag: Flag, text: str) -> Any:
        try:
            return read_value(flag, text)
        except ValueMistake as mistake:
            fix = None if mistake.fix is None else f"--{flag.name} {mistake.fix}"
            self._mistake("error", mistake.rule, flag.name, f"--{flag.name}: {mistake.message}", fix)
            return _REFUSED

    def _check_range(self, flag: Flag, value: Any) -> None:
        """Numbers that vLLM's parser takes and its settings refuse. Of a flag that is written twice only the last value
        counts, so this is known at the end of the line."""
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            if flag.takes(number) or (flag.kind == "count or auto" and number == -1):
                continue
            of_hundred = flag.most == 1 and flag.kind == "number" and 2 <= number <= 100
            fix = f"--{flag.name} {number / 100:g}" if of_hundred else None
            allowed = f"{flag.range}, or auto" if flag.kind == "count or auto" else flag.range
            message = f"--{flag.name}: vLLM refuses {number:.15g}, it must be {allowed}"
            self._mistake("error", "flag-range", flag.name, message, fix)

    def _keep(self, name: str, value: Any) -> None:
        if name in self.flags and name not in self.dotted:
            message = f"--{name} stands there twice: the last one counts"
            self._mistake("warning", "flag-twice", name, message, "write it once")
        self.flags[name] = value

    # -- names ----------------------------------------------------------------------------------------------------

    def _known(self, name: str, given: list[str] | None) -> tuple[Flag, bool] | None:
        """The flag of this name or unique abbreviation; None, and a mistake, if no flag has it. `given`: its value
        where that is known already."""
        options = self.table.by_option
        if name in options:
            return options[name]
        matches = {option for option in options if option.startswith(name)}
        flags = {options[option][0].name for option in matches}
        if len(matches) == 1 or (len(flags) == 1 and f"--{next(iter(flags))}" in matches):
            return options[min(matches, key=len)]
        if matches:
            self._ambiguous(name, sorted(matches), given)
            return None
        self._unknown(name, given)
        return None

    def _ambiguous(self, name: str, matches: list[str], given: list[str] | None) -> None:
        texts = self._skip_unknown(name, given)
        shown = ", ".join(matches[:4]) + (", ..." if matches[4:] else "")
        near = one_typo_away(name, matches) or matches[0]
        message = f"{name} is short for more than one flag: {shown}"
        self._mistake(
            "error", "flag-ambiguous", name.lstrip("-"), message, " ".join([near, *self._shown(texts, matches)])
        )

    def _unknown(self, name: str, given: list[str] | None) -> None:
        options = self.table.by_option
        texts = self._skip_unknown(name, given)
        written = name[:_SHOWN]
        typo = one_typo_away(name, options)
        if typo is not None:
            message = f"vLLM has no flag {written}; did you mean {typo}?"
            fix = " ".join([typo, *self._shown(texts, [typo])])
            self._mistake("error", "flag-unknown", name.lstrip("-"), message, fix)
            return
        near = difflib.get_close_matches(name, options, n=1, cutoff=0.8)
        message = f"vLLM {self.table.version} has no flag {written}, and flags of other versions are not known here"
        message += f"; did you mean {near[0]}?" if near else ""
        self._mistake("warning", "flag-unknown", name.lstrip("-"), message)

    def _shown(self, texts: list[str], meant: list[str]) -> list[str]:
        """The values behind a flag that is not known, as a message may show them. `meant`: what it may stand for."""
        hides = any(self.table.by_option[option][0].name in SECRET_FLAGS for option in meant)
        return [MASK if hides and not is_reference(text) else text for text in texts]

    def _skip_unknown(self, name: str, given: list[str] | None) -> list[str]:
        """Goes past the value of a flag that is not known, if one follows, and gives it."""
        texts = given or []
        if given is None and self.at < len(self.words) and not self._is_option(self.words[self.at]):
            texts = [self.words[self.at]]
            self.at += 1
        self.unknown[name.lstrip("-")] = tuple(texts)
        return texts

    # -- dotted flags ---------------------------------------------------------------------------------------------

    def _dotted(self, word: str) -> str:
        """`--speculative-config.method mtp` is one member of the flag's JSON; `+` after the name makes a list."""
        name, equals, value = word.partition("=")
        if not equals:
            if self.at >= len(self.words):
                self._mistake("error", "flag-value", name.lstrip("-"), f"{name} needs a value, and none follows")
                return name.lstrip("-")
            value = self.words[self.at]
            self.at += 1
        first, *keys = name.removesuffix("+").split(".")
        known = self._known(first, [value])
        if known is None or len(keys) > MOST_DEPTH:
            return name.lstrip("-")
        flag = known[0]
        if flag.kind not in ("json", "json or text"):
            message = f"--{flag.name} has no members, so {name} means nothing"
            value = MASK if flag.name in SECRET_FLAGS and not is_reference(value) else value
            self._mistake("error", "flag-value", flag.name, message, f"--{flag.name} {value}")
            return flag.name
        member: Any = value.split(",") if name.endswith("+") else _member(value)
        for key in reversed(keys):
            member = {key: member}
        if flag.name in self.dotted:
            member = _merged(self.dotted[flag.name], member)
        self.dotted[flag.name] = member
        return flag.name

    def _mistake(
        self, severity: Literal["error", "warning"], rule: str, flag: str, message: str, fix: str | None = None
    ) -> None:
        fix = None if fix is None else masked_keys(fix)
        self.mistakes.append(Mistake(severity, rule, flag, masked_keys(message), fix))


def read_arguments(words: tuple[str, ...], table: FlagTable) -> ParsedArguments:
    """Parse the arguments. Never raises: an argument that vLLM would refuse is a mistake, and the rest is still
    parsed."""
    read = ParsedArguments([dashed(word) for word in words], table)
    read.read()
    return read


_REFUSED = object()


def dashed(word: str) -> str:
    """The word with dashes for the underscores of its flag's name, up to the first dot."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    head, dot, tail = name.partition(".")
    return f"{head.replace('_', '-')}{dot}{tail}{equals}{value}"


def _member(text: str) -> Any:
    """A member of a dotted flag: JSON where it is some, else a count such as 1k, else the text."""
    if is_reference(text):
        return text
    found = json_or_text(text)
    try:
        return read_value(Flag("", "count"), text) if found is text else found
    except ValueMistake:
        return text


def _merged(one: Any, other: Any) -> Any:
    """`other` into `one`: mappings by their keys, lists one after the other, else `other`."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return {**one, **{key: _merged(one[key], value) if key in one else value for key, value in other.items()}}
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *other]
    return other
