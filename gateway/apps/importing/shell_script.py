"""A shell script that starts engines: `docker run ...` and `vllm serve ...`, also behind `NAME=value` and `export`.

Nothing is run. A condition that the script itself decides is followed; of any other, all branches count, with a note.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING

from gateway.apps.importing.draft import Draft, too_large
from gateway.apps.importing.launches import Launches
from gateway.apps.importing.shell import WORD, Word, without_unset
from gateway.apps.importing.shell_statements import COMMAND, Ended, Statements
from gateway.apps.importing.shell_syntax import behind, source
from gateway.apps.importing.source import data_of
from gateway.config.problems import Path
from gateway.launch.command import DEFAULT_PORT, parse
from gateway.launch.docker import DockerFlag, DockerRun, is_docker_run, read_docker_run
from gateway.launch.words import is_vllm_program

if TYPE_CHECKING:
    from tree_sitter import Node

_SHELLS = frozenset(("sh", "bash", "dash", "zsh"))
_OF_THE_SHELL = frozenset(("PATH", "HOME", "SHELL", "USER", "PS1", "PWD", "IFS"))
_IMAGE = re.compile(r"(?=.*[/:])[a-z0-9][\w.-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)*(:[\w.${}-]+)?(@sha256:\w+)?", re.ASCII)
_NAMES_IMAGE = re.compile(r"\$\{\w*(IMAGE|IMG|CONTAINER)(_NAME|_TAG|_REF|_URI|_URL|_ID)?\d*\}", re.IGNORECASE)
_PURE = re.compile(r"(\$\{\w+\}|\$\(.*\)|`.*`)+", re.ASCII | re.DOTALL)
_STARTS = re.compile(r"\b(docker|podman|nerdctl)\s+(run|create|exec)\b|\bvllm\b")
_HOST = re.compile(r"[A-Za-z0-9]([\w.-]*\w)?|[0-9A-Fa-f:]+", re.ASCII)
_WAITS = re.compile(r"(/usr)?(/bin/)?(sleep (infinity|inf|\d+)|tail -f /dev/null|(ba)?sh|cat)?")
_MOST_SOURCED = 256 * 1024  # characters of a file that a script reads in
WORDS_MOST = 20_000  # of a command that may start an engine
Beside = Callable[[str], str | None]
_DEEPEST = 4  # a script inside of a script


def convert(text: str, file: str, address: str | None = None, beside: Beside = lambda name: None) -> Draft:
    """The draft of a script. `beside`: the text of a file in its folder, None where there is none. Raises ConfigError
    where the extra `import` is not installed; a command that is not understood is noted with its line."""
    lines: dict[Path, int] = {}
    launches = Launches(file, lines.get, address)
    launches.notes.check_size(text)
    script = Script(launches, lines, PurePath(file).stem)
    script.beside = beside
    script.read(text)
    script.finish()
    return launches.finished()


class Script(Statements):
    """Hands the commands that start an engine to `launches`."""

    beside: Beside = staticmethod(lambda name: None)
    _lacks_words = False  # the command at hand, of variables that are not set
    _waiting: Mapping[str, tuple[DockerRun, Path, bool]] = {}
    """Containers that wait for a `docker exec`, by name: how each is started, where, and whether one came."""

    def command(self, node: Node, further: Sequence[Node], read: Node | None) -> None:
        env: dict[str, str] = {}
        parts: list[Node] = []
        for one in node.children:
            if one.type == "variable_assignment":
                env |= self._own(one)
            elif one.type == "file_redirect":
                parts += behind(one)
            elif one.type != "herestring_redirect" and one.start_byte < one.end_byte:
                parts.append(one)
        found = list(self.variables.words([*parts, *further]))
        if not found:  # only assignments, which stay
            self._statements([one for one in node.children if one.type == "variable_assignment"])
            return
        line = self._sourced_at or found[0].line + self._first
        self.launches.notes.spend((len(found) + len(found) ** 2 // 20_000) * WORD, line)
        if is_docker_run([word.text for word in found]):
            found = [replace(word, unset=False) if _NAMES_IMAGE.fullmatch(word.text) else word for word in found]
        kept = without_unset(found, self.variables.note)
        self._lacks_words = len(kept) < len(found)
        self.start(kept, line, env, read)

    def _own(self, node: Node) -> dict[str, str]:
        value = node.child_by_field_name("value")
        return {source(node.named_children[0]): self.variables.text(value)}

    def start(self, given: Sequence[Word | str], line: int, env: Mapping[str, str], read: Node | None = None) -> None:
        """One command, with the variables of its own. `read`: the here-document that it reads."""
        self._line = line
        words = [word if isinstance(word, str) else word.text for word in given]
        if len(words) > WORDS_MOST:
            raise too_large(self.launches.file, f"a command of more than {WORDS_MOST:,} words", line)
        first = words[0] if words else ""
        words, env = _unwrapped(words, dict(env))
        if not words:
            return
        if words[0] in self._functions:
            self._call(words[0], words[1:])
        elif first == "eval":
            self._inside(" ".join(words), line, env)
        elif words[0] in ("source", ".") and words[1:] and (text := self._beside(words[1])) is not None:
            self._source(text)
        elif words[0] in ("exit", "return"):
            raise Ended(words[0])
        elif words[0] == "set" and "--" in words:
            self.variables.positional = words[words.index("--") + 1 :]
        elif words[0] == "shift" and self.variables.positional is not None:
            self.variables.positional = self.variables.positional[
                int(words[1]) if words[1:2] and words[1].isdigit() else 1 :
            ]
        elif words[0] in ("read", "mapfile", "readarray"):
            for word in words[1:]:
                self.variables.values.pop(word, None)
        elif is_docker_run(words):
            self._container(words, line, env)
        elif _base(words[0]) in _SHELLS:
            self._shell(words, line, env, read)
        elif _base(words[0]) in data_of("formats")["shell"]["sessions"] and _STARTS.search(" ".join(words)):
            self._session(words, line, env)
        elif _base(words[0]) == "ssh" and _STARTS.search(" ".join(words)):
            self._elsewhere(words, line)
        elif words[1:2] == ["exec"] and _base(words[0]) in ("docker", "podman") and self._executed(words, line, env):
            pass
        elif _starts_vllm(words):
            self._note_condition()
            self._starts += 1
            self.launches.notes.spend(len(self.variables.exported) * COMMAND, line)
            exported = {name: " ".join(self.variables.values.get(name, [])) for name in self.variables.exported}
            own = {name: text for name, text in {**exported, **env}.items() if name not in _OF_THE_SHELL}
            self.launches.host(words, own, self.path_of("vllm serve", line), self.stem)
        else:
            self._not_a_start(words, line)
        if first == "exec" and len(words) and not self._conditions:
            raise Ended("exec")

    def _container(self, words: list[str], line: int, env: Mapping[str, str]) -> None:
        self._note_condition()
        self._starts += 1
        self.launches.notes.spend(len(self.variables.values) * COMMAND, line)
        path = self.path_of("docker run", line)
        known = {name: " ".join(values) for name, values in self.variables.values.items()} | dict(env)
        run = _with_image(words)
        if run is not None and run.name and _WAITS.fullmatch(" ".join(run.command)) and run.image:
            self._waiting = {**self._waiting, run.name: (run, path, False)}
            return
        bare = run is not None and run.image is not None and not re.search(r"[/:$]", run.image)
        if run is None or (bare and self._lacks_words):
            hint = "write the image instead of the variable, or set the variable in the script"
            self.launches.notes.to_do(path, "which word is the image cannot be told: it is not imported", hint)
            return
        self.launches.container(run, path, self.stem, env=known)

    def _executed(self, words: list[str], line: int, env: Mapping[str, str]) -> bool:
        """`docker exec CONTAINER vllm serve ...`: a launch of the container that waits for it; whether it is one."""
        inside = read_docker_run(["docker", "run", *words[2:]])
        name, text = inside.image or "", shlex.join(inside.command)
        command = parse(text if _STARTS.search(text) else "")
        if not command.is_vllm or not command.program or not command.model:
            return False
        self._note_condition()
        self._starts += 1
        path = self.path_of("docker exec", line)
        if (waiting := self._waiting.get(name)) is not None:
            run = waiting[0]
            self._waiting = {**self._waiting, name: (run, waiting[1], True)}
            given = (*(flag for flag in run.given if flag.name != "entrypoint"), *inside.given)
            given = tuple(flag for flag in given if flag.name not in ("interactive", "tty", "detach"))
            first, rest = inside.command[0], inside.command[1:]
            run = replace(run, given=(*given, DockerFlag("entrypoint", first)), command=rest)
            self.launches.container(run, path, self.stem, env=env)
        else:
            self.launches.other("vllm", command.served_names[0], path, self.stem, command.port or DEFAULT_PORT, {})
        return True

    def _beside(self, name: str) -> str | None:
        """The text of a file that the script reads in, found by its place beside the script."""
        if self._sourced_at is not None:
            return None
        name = re.sub(r"^(\$\(.*\)|\$\{\w+\}|`.*`)/", "", name, flags=re.DOTALL)
        text = None if "$" in name or name.startswith("/") else self.beside(name)
        return text if text is not None and len(text) <= _MOST_SOURCED else None

    def finish(self) -> None:
        """Containers that waited for nothing are no launch."""
        for run, path, came in self._waiting.values():
            if not came:
                self.launches.container(run, path, self.stem)

    def _session(self, words: list[str], line: int, env: Mapping[str, str]) -> None:
        """`tmux new -d 'vllm serve ...'`: the command that runs in it, as one word or from its program on."""
        for at, word in enumerate(words[1:], 1):
            if " " in word and _STARTS.search(word):
                self._inside(word, line, env)
                return
            rest = words[at:]
            starts = _starts_vllm(rest) and len(parse(shlex.join(rest)).program) > 1  # no session of that name
            if _base(word) in _SHELLS or starts or is_docker_run(rest):
                self.start(rest, line, env)
                return

    def _elsewhere(self, words: list[str], line: int) -> None:
        """`ssh HOST "docker run ..."`: what runs on another machine."""
        at = 1
        while at < len(words) and words[at].startswith("-"):
            at += 2 if len(words[at]) == 2 and words[at][1] in "BbcDEeFIiJLlmOopQRSWw" else 1
        host, rest = "".join(words[at : at + 1]).rpartition("@")[2], words[at + 1 :]
        before = self.launches.address
        if _HOST.fullmatch(host) and host not in ("localhost", "127.0.0.1"):
            self.launches.address = host
        try:
            self._inside(" ".join(rest), line, {})
        finally:
            self.launches.address = before

    def _inside(self, text: str, line: int, env: Mapping[str, str], positional: Sequence[str] | None = None) -> None:
        if self._depth >= _DEEPEST:
            return
        for name, value in env.items():
            self.variables.values[name] = [value]
            self.variables.exported[name] = None
        before, self.variables.positional = self.variables.positional, list(positional) if positional else None
        try:
            self.read(text.replace("$${", "${"), line, self._depth + 1)
        finally:
            self.variables.positional = before

    def _shell(self, words: list[str], line: int, env: Mapping[str, str], read: Node | None) -> None:
        """`bash -c "..."` and `bash <<E` are read; a script in a file of its own has to be imported itself."""
        at = next((i for i, word in enumerate(words[:-1]) if re.fullmatch(r"-[a-z]*c", word)), None)
        script = next((word for word in words[1:] if not word.startswith("-")), "")
        if at is not None:
            with self._restored():
                self.variables.values |= {"0": words[at + 2 : at + 3]} if words[at + 2 :] else {}
                self._inside(words[at + 1], line, env, words[at + 3 :])
        elif read is not None and not script:
            with self._restored():
                self._inside(self.variables.here(read), line + 1, env)
        elif script:
            self._note_script(script, line)

    def _note_script(self, script: str, line: int) -> None:
        path = self.path_of(script, line)
        self.launches.notes.to_do(path, "starts a script of its own", f"gateway import {shlex.quote(script)}")

    def _not_a_start(self, words: list[str], line: int) -> None:
        notes, base, known = self.launches.notes, _base(words[0]), data_of("formats")["shell"]
        if base in known["silent"] or (base == "docker" and words[1:2] and words[1] in known["silent_docker"]):
            return
        if base in ("docker", "podman") and words[1:2] == ["exec"]:
            script = next((word for word in words[2:] if re.search(r"\.sh\b", word)), None)
            hint = "import the script that it runs"
            if script is not None:
                file = re.search(r"/[\w./-]+\.sh", script)
                container = next((word for word in words[2:] if not word.startswith("-")), "CONTAINER")
                hint = f"docker cp {container}:{file[0] if file else script} . && gateway import it"
            notes.to_do(self.path_of("docker exec", line), "starts something inside of a running container", hint)
        elif base == "docker-compose" or (base == "docker" and words[1:2] == ["compose"]):
            compose = next((after for word, after in pairwise(words) if word == "-f"), "compose.yaml")
            notes.to_do(self.path_of(base, line), "starts a compose file", f"gateway import {shlex.quote(compose)}")
        elif re.search(r"\bvllm serve\b|\bdocker run\b", " ".join(words)):
            notes.to_do(self.path_of(base, line), f"{base} starts it: not understood", "write launch: under a backend")
        elif "/" in words[0] and words[0].endswith(".sh"):
            self._note_script(words[0], line)
        else:
            what = " ".join([base, *(word for word in words[1:2] if re.fullmatch(r"[a-z][a-z-]{1,20}", word))])
            shown = self.launches.secrets.mask(what)[:60]
            notes.left_out(self.path_of(base, line), f"`{shown}` is no part of a launch")


def _starts_vllm(words: Sequence[str]) -> bool:
    """Whether these words are a command that runs vLLM's server on the machine."""
    parts = parse(shlex.join(words)).parts
    own = parts.before == parts.program or _base(words[0]) in data_of("formats")["shell"]["keeps"]
    return own and is_vllm_program(parts.program)


def _with_image(words: Sequence[str]) -> DockerRun | None:
    """The `docker run`. A word that is only a reference is not its image while a later word looks like one; None where
    that cannot be told."""
    words = list(words)
    for _ in words:
        run = read_docker_run(words)
        if run.image is None or not _PURE.fullmatch(run.image) or _NAMES_IMAGE.fullmatch(run.image):
            return run
        at = len(words) - len(run.command) - 1
        rest = read_docker_run([*words[:at], *words[at + 1 :]])
        if rest.image is None or not (_IMAGE.fullmatch(rest.image) or _PURE.fullmatch(rest.image)):
            return run if run.command[:1] != ("$",) and not _PURE.fullmatch(rest.image or "") else None
        words = [*words[:at], *words[at + 1 :]]
    return None


def _unwrapped(words: list[str], env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The command without `sudo -E`, `env A=1`, `exec`, `nohup`, and the variables that these set."""
    wrappers = data_of("formats")["shell"]["wrappers"]
    while words and (wrapper := wrappers.get(_base(words[0]))) is not None:
        valued, count = wrapper
        words = words[1:]
        while words and (words[0].startswith("-") or re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.ASCII | re.DOTALL)):
            name, equals, value = words[0].partition("=")
            env |= {name: value} if equals and not name.startswith("-") else {}
            words = words[2 if len(words[0]) == 2 and words[0][1] in valued else 1 :]
        words = words[count:]
    return words, env


def _base(word: str) -> str:
    return word.rsplit("/", 1)[-1]
