"""The words of a command line: split as a shell does, and the part of them that starts vLLM."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import NamedTuple

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
_SPACES = " \t\r\n"
_SHELLS = frozenset(("sh", "bash", "dash", "zsh"))
_ELSEWHERE = frozenset(("docker", "podman", "nerdctl", "sudo", "ssh"))  # what they start has a place of its own
_MODULE = re.compile(r"vllm(\.entrypoints\..*)?", re.ASCII)
_WRAPPER = re.compile(r"[\w.-]*vllm[\w.-]*", re.ASCII)  # a program around vLLM, which is given `serve MODEL`
_START = re.compile(r"(?m)^[ \t]*((?:exec[ \t]+)?(?:\S*/)?vllm[ \t]+serve\b(?:[^\\\n]|\\.|\\\n)*)", re.ASCII)
_ENDS = frozenset(("&&", "||", ";", "|", "&", "\n"))
_REDIRECTION = re.compile(r"\d?(>>?|<|>&|&>)")


class SplitWords(NamedTuple):
    """`words`, or `problem`: why the text cannot be split (then `words` are those between spaces)."""

    words: tuple[str, ...]
    problem: str | None


def split(text: str) -> SplitWords:
    """The words of a command, which may stand on several lines, as a shell would give them to its program: comments are
    left out, and a backslash at the end of a line (also where YAML has joined the lines) continues it."""
    words: list[str] = []
    word: list[str] | None = None  # the one that is being read
    at = 0
    while at < len(text):
        letter = text[at]
        if letter in _SPACES:
            words += [] if word is None else ["".join(word)]
            word = None
            at += 1
        elif letter == "#" and word is None:
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif (
            letter == "\\"
            and (word is None or text[at + 1 : at + 2] == "\n")
            and text[at + 1 : at + 2] in _SPACES
            and at + 1 < len(text)
        ):
            at += 2
        else:
            read = _piece(text, at)
            if read is None:
                return SplitWords(tuple(text.split()), "a quote is never closed")
            piece, at = read
            word = [] if word is None else word
            word.append(piece)
    words += [] if word is None else ["".join(word)]
    return SplitWords(tuple(words), None)


def _piece(text: str, at: int) -> tuple[str, int] | None:
    """(letters of a word from `at` on without their quoting, where the next begin); None for a quote without its
    end."""
    letter = text[at]
    if letter == "'":
        end = text.find("'", at + 1)
        return None if end < 0 else (text[at + 1 : end], end + 1)
    if letter == '"':
        return _in_double_quotes(text, at + 1)
    if letter == "\\" and at + 1 < len(text):
        return text[at + 1], at + 2
    return letter, at + 1


def _in_double_quotes(text: str, at: int) -> tuple[str, int] | None:
    letters: list[str] = []
    while at < len(text):
        letter = text[at]
        if letter == '"':
            return "".join(letters), at + 1
        if letter == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "`", "\n"):
            letters += [] if text[at + 1] == "\n" else [text[at + 1]]
            at += 2
        else:
            letters.append(letter)
            at += 1
    return None


@dataclass(frozen=True, slots=True)
class CommandParts:
    """`before`: the words in front of vLLM's arguments (assignments, the program). `arguments`: vLLM's own. `script`:
    the index in `words` of the text given to `sh -c` in which vLLM is started; None without a shell."""

    env: dict[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    script: int | None = None


def assignments(words: tuple[str, ...]) -> tuple[dict[str, str], int]:
    """(variables, index of the word behind them) of `NAME=value ... program argument ...`, with or without `env`."""
    env: dict[str, str] = {}
    start = 1 if words[:1] == ("env",) else 0
    while start < len(words) and (match := _ASSIGNMENT.fullmatch(words[start])):
        env[match[1]] = match[2]
        start += 1
    return env, start


def parts_of(words: tuple[str, ...], *, serving: bool) -> CommandParts:
    """Take a command apart. `serving`: the image may start `vllm serve` itself, so a first word that is no program is
    the model already."""
    env, start = assignments(words)
    length = _program_length(words[start:], serving=serving)
    program = words[start : start + length]
    if program and _base(program[0]) in _SHELLS:
        return _in_a_shell(words, start, env, program)
    return _behind_wrapper(words, start, env) or CommandParts(
        env, program, words[start + length :], words[: start + length]
    )


def _behind_wrapper(words: tuple[str, ...], start: int, env: dict[str, str]) -> CommandParts | None:
    """`/launch.sh vllm serve MODEL ...`: the arguments of the vLLM that a wrapper runs; None without a wrapper."""
    if not words[start:] or words[start].startswith("-") or _base(words[start]) in _ELSEWHERE:
        return None
    for at in range(start + 1, len(words)):
        program = words[at : at + _program_length(words[at : at + 4], serving=True)]
        if len(program) > 1 and is_vllm_program(program) and _base(words[start]) != "vllm":
            return CommandParts(env, program, words[at + len(program) :], words[: at + len(program)])
    return None


def _program_length(words: tuple[str, ...], *, serving: bool) -> int:
    """How many of the words are the program: 2 for `vllm serve`, 3 for `python -m vllm...`, 0 for arguments alone."""
    if not words or words[0].startswith("-"):
        return 0
    base = _base(words[0])
    if base == "vllm":
        return 2 if words[1:2] == ("serve",) else 1
    if base.startswith("python") and words[1:2] == ("-m",) and _MODULE.fullmatch(" ".join(words[2:3])):
        return 4 if words[2] == "vllm" and words[3:4] == ("serve",) else 3
    if base in _SHELLS or base.startswith("python"):
        return 3 if _is_wrapper(words[1:3]) else 1
    if _is_wrapper(words[:2]):
        return 2
    return 0 if serving else 1


def _in_a_shell(words: tuple[str, ...], start: int, env: dict[str, str], program: tuple[str, ...]) -> CommandParts:
    """`bash -c "pip install x && vllm serve ..."`: the arguments of the vllm that the script starts."""
    found = CommandParts(env, program, (), words)
    index = next((i for i in range(start + 1, len(words) - 1) if re.fullmatch(r"-[a-z]*c", words[i])), None)
    if index is None:
        return _behind_wrapper(words, start, env) or found
    commands: list[list[str]] = [[]]
    for word in _script_words(words[index + 1]):
        if word in _ENDS:
            commands.append([])
        elif word in ("$@", "$*", "${@}") and commands[-1] not in ([], ["exec"]):
            # the arguments behind the script, whose first is its name; alone they are the program, too
            commands[-1] += words[index + 3 :]
        else:
            commands[-1].append(word)
    for command in commands:
        command = command[1:] if command[:1] == ["exec"] else command
        end = next((at for at, word in enumerate(command) if _REDIRECTION.match(word)), len(command))
        inner = parts_of(tuple(command[:end]), serving=False)
        if is_vllm_program(inner.program):
            return CommandParts({**env, **inner.env}, inner.program, inner.arguments, inner.before, index + 1)
    return _behind_wrapper(words, start, env) or found


def _script_words(script: str) -> list[str]:
    reader = shlex.shlex(script.replace("\\\n", " "), posix=True, punctuation_chars=";&|\n")
    reader.whitespace, reader.whitespace_split = " \t\r", True
    reader.commenters = ""
    try:
        return list(reader)
    except ValueError:  # quotes that a shell reads otherwise: the line alone on which vLLM starts
        line = _START.search(script)
        return [] if line is None else ["\n", *split(line[1]).words]


def end_of_command(script: str, at: int) -> int:
    """The end of the script's command that begins at `at`: a redirection, or the separator before the next command.
    Quoted text ends nothing."""
    word = at  # where the word at hand begins
    while at < len(script):
        letter = script[at]
        if letter in "<>" and script[word:at].isdigit():  # `2>&1`
            return word
        if letter in ";|&<>\n":
            return at
        read = _piece(script, at)
        if read is None:
            return len(script)
        at = read[1]
        word = at if letter in _SPACES else word
    return len(script)


def is_vllm_program(program: tuple[str, ...]) -> bool:
    """Whether these words start vLLM's server: `vllm serve`, `python -m vllm.entrypoints.openai.api_server`."""
    if not program:
        return False
    if _base(program[0]) == "vllm":
        return program[1:] in ((), ("serve",))
    return (program[1:2] == ("-m",) and len(program) > 2) or _is_wrapper(program[-2:])


def _is_wrapper(words: tuple[str, ...]) -> bool:
    return len(words) == 2 and words[1] == "serve" and _WRAPPER.fullmatch(_base(words[0])) is not None


def lacks_subcommand(program: tuple[str, ...]) -> bool:
    """Whether the program is vLLM's command line without `serve`: `vllm`, or `python -m vllm`."""
    return program[1:] == ("-m", "vllm") or (len(program) == 1 and _base(program[0]) == "vllm")


def _base(word: str) -> str:
    return word.rsplit("/", 1)[-1]
