"""A systemd unit that starts an engine: its ExecStart is a `docker run`, a `vllm serve` or a shell with one of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import PurePath

from gateway.apps.importing.draft import Draft
from gateway.apps.importing.launches import Launches
from gateway.apps.importing.shell import Word, without_unset
from gateway.apps.importing.shell_script import Beside, Script
from gateway.config.expand import parse_env
from gateway.config.problems import Path

_SPECIFIER = re.compile(r"%([A-Za-z])")
_REFERENCE = re.compile(r"\$\{(\w+)\}|\$([A-Za-z_]\w*)", re.ASCII)
_STEPS = ("ExecStartPre", "ExecStartPost", "ExecStop", "ExecStopPost", "ExecReload")
_RENDERED = re.compile(r"drop_caches|docker (stop|rm|kill|start)|/dev/shm|^/(usr/)?bin/sleep|pkill|pull")
# Decided by the unit of a launch block, or about how systemd watches this one.
_OF_THE_UNIT = re.compile(
    r"Type|Restart\w*|Timeout\w*|StartLimit\w*|Kill\w*|SendSIG\w*|SuccessExitStatus|RemainAfterExit|NotifyAccess"
    r"|Standard\w*|Syslog\w*|PermissionsStartOnly|PIDFile|GuessMainPID|LimitMEMLOCK|LimitSTACK|LimitNOFILE|Delegate"
)
_READ = frozenset(("Environment", "EnvironmentFile", "PassEnvironment", "ExecStart", *_STEPS))


UnitLine = tuple[str, str, int]  # key, value, number of the line


def read_unit(text: str) -> Iterator[UnitLine]:
    """The lines of the section [Service]; continued ones are joined."""
    section = ""
    number = 0
    lines = text.splitlines()
    while number < len(lines):
        start, parts = number + 1, [""]
        while number < len(lines):
            line = lines[number].strip()
            number += 1
            if len(parts) > 1 and line.startswith(("#", ";")):
                continue  # systemd drops comments between continued lines
            parts.append(line.removesuffix("\\").rstrip())
            if not line.endswith("\\"):
                break
        joined = " ".join(filter(None, parts))
        if match := re.fullmatch(r"\[([^\]]+)\]", joined):
            section = match[1]
        elif section == "Service" and joined and not joined.startswith(("#", ";")) and "=" in joined:
            key, _, value = joined.partition("=")
            yield key.strip(), value.strip(), start


def convert(text: str, file: str, address: str | None = None, beside: Beside = lambda name: None) -> Draft:
    """The draft of a unit. `beside`: the text of a file in its folder, None where there is none. Never raises: a line
    that is not understood is noted."""
    lines: dict[Path, int] = {}
    launches = Launches(file, lines.get, address)
    script = Script(launches, lines, PurePath(file).stem)
    launches.notes.check_size(text)
    unit = list(read_unit(text))
    env = _environment(unit, launches, lines, beside)
    script.variables.values |= {name: [value] for name, value in env.items()}
    for key, value, number in unit:
        path: Path = (key,)
        if key == "ExecStart" and value:
            lines[path] = number
            _start(value, number, env, launches, script)
        elif key in _STEPS and not _RENDERED.search(value.lstrip("-@:+!")):
            lines[path] = number
            launches.notes.left_out(path, "this step is no part of a launch", "add it to the unit that is rendered")
        elif key in _STEPS:
            lines.setdefault(path, number)
            launches.notes.changed(path, "`gateway fleet render` writes such steps into its units")
        elif key not in _READ and not _OF_THE_UNIT.fullmatch(key):
            lines[path] = number
            hint = "sudo systemctl edit the unit that is rendered, if it needs that"
            launches.notes.left_out(path, "is not taken over", hint)
    return launches.finished()


def _environment(unit: list[UnitLine], launches: Launches, lines: dict[Path, int], beside: Beside) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value, number in unit:
        if key == "Environment":
            words = _words(value.replace("%%", "%"), key, launches)
            lines[("Environment",)] = number
            pairs = (word.split("=", 1) for word in words if "=" in word)
            found |= {name: launches.secrets.value(name, text, ("Environment",)) for name, text in pairs}
        elif key == "EnvironmentFile" and (text := beside(PurePath(value.lstrip("-")).name)) is not None:
            lines[(key,)] = number
            variables = parse_env(text, value)[0]
            found |= {name: launches.secrets.value(name, text, (key,)) for name, text in variables.items()}
            launches.notes.changed((key,), f"{len(variables)} variables are read from the file of that name beside it")
        elif key in ("EnvironmentFile", "PassEnvironment"):
            lines[(key,)] = number
            hint = "write each under launch.env as NAME: ${NAME}"
            launches.notes.to_do((key,), f"the variables of {value.lstrip('-')} are not read", hint)
    return found


def _start(value: str, number: int, env: dict[str, str], launches: Launches, script: Script) -> None:
    value = value.lstrip("-@:+!|")
    if _SPECIFIER.search(value.replace("%%", "")):
        launches.notes.to_do(("ExecStart",), "a specifier of systemd (%i, %h, ...) stays as it is", "write its value")
    words = _words(value.replace("%%", "%"), "ExecStart", launches)
    inside_shell = bool(words) and words[0].rsplit("/", 1)[-1] in ("sh", "bash") and len(words) > 2
    found = [Word(word) for word in words]
    if not inside_shell:  # a shell puts its variables in itself
        found = without_unset([one for word in words for one in _expanded_words(word, env)], script.note_value)
    script.variables.exported |= dict.fromkeys(env)
    script.start([word.text.replace("$$", "$") for word in found], number, {})


def _expanded_words(word: str, env: dict[str, str]) -> list[Word]:
    """`$NAME` alone is as many words as its value has, and none where it is not set; other forms are one word."""
    alone = re.fullmatch(r"\$([A-Za-z_]\w*)", word, re.ASCII)
    if alone is None:
        return [Word(_REFERENCE.sub(lambda match: env.get(name := match[1] or match[2], f"${{{name}}}"), word))]
    value = env.get(alone[1])
    return [Word(f"${{{alone[1]}}}", unset=True)] if value is None else [Word(part) for part in value.split()]


def _words(text: str, key: str, launches: Launches) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        launches.notes.to_do((key,), "a quote is never closed", "correct the command under launch")
        return text.split()
