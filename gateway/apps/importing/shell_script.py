"""A shell script that starts engines: `docker run ...` and `vllm serve ...`, also behind `NAME=value` and `export`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath

from gateway.apps.importing.draft import Draft, too_large
from gateway.apps.importing.launches import Launches
from gateway.apps.importing.shell import KEYWORDS, WORD, WRAPPERS, Variables, Word, assigned, read_commands
from gateway.config.problems import Path
from gateway.launch.command import parse
from gateway.launch.docker import is_docker_run, read_docker_run
from gateway.launch.words import is_vllm_program

_SHELLS = frozenset(("sh", "bash", "dash", "zsh"))
_OF_THE_SHELL = frozenset(("PATH", "HOME", "SHELL", "USER", "PS1", "PWD", "IFS"))
# Commands around a start that need no word: they prepare, wait or look.
_SILENT_NAMES = (
    "set echo printf sleep sync true false : exit mkdir curl jq wait trap shopt unset grep tail cat [ [[ test hostname"
    " date ls tee"
)
_SILENT = frozenset(_SILENT_NAMES.split())
_SILENT_DOCKER = frozenset(
    ("stop", "rm", "kill", "pull", "logs", "ps", "inspect", "image", "network", "volume", "wait")
)
_LOOPS = frozenset(("for", "case", "select", "function"))
WORDS_MOST = 20_000  # of a command that may start an engine
COMMAND = 16  # what a command costs in words, and a variable that it sees in characters
_DEEPEST = 4  # a script inside of a script


def convert(text: str, file: str, address: str | None = None) -> Draft:
    """The draft of a script. Never raises: a command that is not understood is noted with its line."""
    lines: dict[Path, int] = {}
    launches = Launches(file, lines.get, address)
    launches.notes.check_size(text)
    Script(launches, lines, PurePath(file).stem).read(text)
    return launches.finished()


class Script:
    """Reads commands in order and hands those that start an engine to `launches`. `lines`: where each path stands."""

    def __init__(self, launches: Launches, lines: dict[Path, int], stem: str) -> None:
        self.launches, self.lines, self.stem = launches, lines, stem
        self.variables = Variables(spend=lambda steps: launches.notes.spend(steps, self._line))
        self._line = 1  # of the command at hand
        self._counts: dict[str, int] = {}
        self._conditions: list[int] = []  # the lines of every `if` around the command at hand

    def read(self, text: str, first_line: int = 1, depth: int = 0) -> None:
        self.launches.notes.spend(len(text) if depth else 0, first_line)
        for command in read_commands(text):
            self._line = command[0].line + first_line - 1
            self.launches.notes.spend(_cost(len(command)), self._line)
            moved = [Word(word.text, word.line + first_line - 1, word.quoted) for word in command]
            self._command(moved, depth)

    def _command(self, words: list[Word], depth: int) -> None:
        if words[0].text in _LOOPS:
            path = self._path(words[0].text, words[0].line)
            self.launches.notes.to_do(path, "not followed: what stands inside counts once", "look at the result")
            return
        exported = False
        if words[0].text == "if":
            self._conditions.append(words[0].line)
        elif words[0].text == "fi" and self._conditions:
            self._conditions.pop()
        while words and (words[0].text in KEYWORDS or words[0].text in WRAPPERS or words[0].text in ("{", "}")):
            exported = exported or words[0].text in ("export", "declare")
            words = words[1:]
        while exported and words and words[0].text.startswith("-"):
            words = words[1:]
        own = assigned(words)
        if exported or (own and len(own) == len(words)) or any(word.text.endswith("=(") for word in words[:1]):
            self._assign(words, exported=exported)
            return
        env = {name: self.variables.text(word.text) for name, word in own.items()}
        found = list(self.variables.words(words[len(own) :]))
        if found:
            self.start([word.text for word in found], found[0].line, env, depth)

    def _check_words(self, words: Sequence[object]) -> None:
        if len(words) > WORDS_MOST:
            raise too_large(self.launches.file, f"a command of more than {WORDS_MOST:,} words", self._line)

    def _note_condition(self) -> None:
        """Both branches count whatever the condition says."""
        if self._conditions:
            path: Path = ("if", self._conditions[-1])
            self.lines[path] = self._conditions[-1]
            self.launches.notes.to_do(
                path, "not followed: both branches count, the last value wins", "look at the result"
            )

    def _assign(self, words: list[Word], *, exported: bool) -> None:
        self._note_condition()
        while words:
            taken = self.variables.assign(words)
            names = assigned(words[:taken]) or {words[0].text: words[0]}
            self._hide_secrets(names)
            self.variables.exported |= dict.fromkeys(names) if exported else {}
            words = words[max(taken, 1) :]

    def _hide_secrets(self, names: Mapping[str, Word]) -> None:
        """A secret never gets any further than the line that assigns it."""
        for name, word in names.items():
            values = self.variables.values.get(name)
            if values is not None and len(values) == 1:
                self.lines[("export", name)] = word.line
                self.variables.values[name] = [self.launches.secrets.value(name, values[0], ("export", name))]

    def start(self, words: Sequence[str], line: int, env: Mapping[str, str], depth: int = 0) -> None:
        """One command, with the variables of its own."""
        self._line = line
        self._check_words(words)
        words, env = _unwrapped(list(words), dict(env))
        if not words:
            return
        if is_docker_run(words):
            self._note_condition()
            self.launches.notes.spend(len(self.variables.values) * COMMAND, line)
            known = {name: " ".join(values) for name, values in self.variables.values.items()} | dict(env)
            self.launches.container(read_docker_run(words), self._path("docker run", line), self.stem, env=known)
        elif _base(words[0]) in _SHELLS:
            self._shell(words, line, env, depth)
        elif is_vllm_program(parse(shlex.join(words)).program):
            self._note_condition()
            self.launches.notes.spend(len(self.variables.exported) * COMMAND, line)
            exported = {name: " ".join(self.variables.values.get(name, [])) for name in self.variables.exported}
            given = {name: text for name, text in {**exported, **env}.items() if name not in _OF_THE_SHELL}
            self.launches.host(words, given, self._path("vllm serve", line), self.stem)
        else:
            self._not_a_start(words, line)

    def _shell(self, words: list[str], line: int, env: Mapping[str, str], depth: int) -> None:
        """`bash -c "..."` is read; a script in a file of its own has to be imported itself."""
        for name, text in env.items():
            self.variables.values[name] = [text]
            self.variables.exported[name] = None
        at = next((i for i, word in enumerate(words[:-1]) if re.fullmatch(r"-[a-z]*c", word)), None)
        if at is not None and depth < _DEEPEST:
            self.read(words[at + 1], line, depth + 1)
        elif len(words) > 1:
            script = next((word for word in words[1:] if not word.startswith("-")), "")
            self._note_script(script, line)

    def _note_script(self, script: str, line: int) -> None:
        path = self._path(script, line)
        self.launches.notes.to_do(path, "starts a script of its own", f"gateway import {shlex.quote(script)}")

    def _not_a_start(self, words: list[str], line: int) -> None:
        notes, base = self.launches.notes, _base(words[0])
        if base in _SILENT or (base == "docker" and words[1:2] and words[1] in _SILENT_DOCKER):
            return
        if base in ("docker", "podman") and words[1:2] == ["exec"]:
            script = next((word for word in words[2:] if re.search(r"\.sh\b", word)), None)
            hint = "import the script that it runs"
            if script is not None:
                file = re.search(r"/[\w./-]+\.sh", script)
                container = next((word for word in words[2:] if not word.startswith("-")), "CONTAINER")
                hint = f"docker cp {container}:{file[0] if file else script} . && gateway import it"
            notes.to_do(self._path("docker exec", line), "starts something inside of a running container", hint)
        elif base == "docker-compose" or (base == "docker" and words[1:2] == ["compose"]):
            compose = next((after for word, after in pairwise(words) if word == "-f"), "compose.yaml")
            notes.to_do(self._path(base, line), "starts a compose file", f"gateway import {shlex.quote(compose)}")
        elif re.search(r"\bvllm serve\b|\bdocker run\b", " ".join(words)):
            notes.to_do(self._path(base, line), f"{base} starts it: not understood", "write launch: under a backend")
        elif "/" in words[0] and words[0].endswith(".sh"):
            self._note_script(words[0], line)
        else:
            what = " ".join([base, *(word for word in words[1:2] if re.fullmatch(r"[a-z][a-z-]{1,20}", word))])
            notes.left_out(self._path(base, line), f"`{self.launches.secrets.mask(what)[:60]}` is no part of a launch")

    def _path(self, what: str, line: int) -> Path:
        number = self._counts.get(what, 0)
        self._counts[what] = number + 1
        path: Path = (what, number) if number else (what,)
        self.lines[path] = line
        return path


def _cost(words: int) -> int:
    """What a command costs, in characters; words that only stand before it are taken off one by one."""
    return (COMMAND + words + words**2 // 20_000) * WORD


def _unwrapped(words: list[str], env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The command without `sudo -E`, `env A=1`, `exec`, `nohup`, and the variables that these set."""
    while words and (_base(words[0]) in ("sudo", "env", "nice", "stdbuf") or words[0] in WRAPPERS):
        words = words[1:]
        while words and (words[0].startswith("-") or re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.ASCII | re.DOTALL)):
            name, equals, value = words[0].partition("=")
            env |= {name: value} if equals and not name.startswith("-") else {}
            words = words[1:]
    return words, env


def _base(word: str) -> str:
    return word.rsplit("/", 1)[-1]
