"""The command line of an engine, read as the engine's own parser reads it.

`parse` takes the text an operator would type (`vllm serve MODEL --port 8001 ...`, or the arguments alone where the
image's entrypoint is `vllm serve`, or those of the program that `docker run --entrypoint` names) and gives a
`ServeCommand`: the model, every flag by its full name with a typed value, and what is wrong with the line. The flags
that exist, their types and choices are data (`flags.py`).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.launch.arguments import Mistake as Mistake
from gateway.launch.arguments import ParsedArguments, dashed, read_arguments
from gateway.launch.flags import is_reference, one_typo_away, vllm_flags
from gateway.launch.secrets import MASK, masked_keys
from gateway.launch.words import (
    CommandParts,
    assignments,
    end_of_command,
    is_vllm_program,
    lacks_subcommand,
    parts_of,
    split,
)

# Images of this repository have `vllm serve` as their entrypoint.
SERVING_IMAGES = ("vllm/vllm-openai",)
DEFAULT_PORT = 8000  # of vLLM
MASTER_PORT = 29501  # on which the nodes of one engine meet, where the command says none
# Subcommands of vLLM 0.32 that start no server for models.
_OTHER_SUBCOMMANDS = frozenset(
    ("bench", "chat", "collect-env", "complete", "download-kernels", "launch", "preload", "run-batch", "snapshot")
)
_CONTAINER_TOOLS = ("docker", "podman", "nerdctl", "sudo")


@dataclass(frozen=True)
class ServeCommand:
    """One command line that starts an engine.

    `text`: as it is written. `words`: what is run, as a shell splits it, with `entrypoint` as its program. `image`:
    None if it runs on the host. `entrypoint`: that of `docker run`; "" = the image's own is switched off, None if it
    stays. `env`: the NAME=value words before the program. `program`: what is run, ("vllm", "serve"), or () where the
    words are only arguments. `model`: the positional argument, or --model.
    `flags`: full name without dashes ("max-model-len") -> value: int, float, str, bool for switches, plain data for
    JSON, a list for flags that take several words; a value that holds a reference such as ${PORT} is kept as text. The
    last of a repeated flag counts, as in argparse. `unknown`: flags that the known version of vLLM does not have -> the
    words after them. `mistakes` are in the order of the words."""

    text: str = ""
    words: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = ()
    model: str | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    unknown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mistakes: tuple[Mistake, ...] = ()
    parts: CommandParts = field(default_factory=CommandParts)
    image: str | None = None
    entrypoint: str | None = None

    @property
    def is_vllm(self) -> bool:
        """Whether it starts a vLLM: its program is vLLM's, or there is no program (an image's entrypoint)."""
        return bool(self.words) and (not self.program or is_vllm_program(self.program))

    @property
    def port(self) -> int | None:
        """The port on which its vLLM listens, in its container; None if only known where it is started (`${PORT}`)."""
        port = self.flags.get("port", DEFAULT_PORT)
        return port if isinstance(port, int) else None

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names clients may use for its model: --served-model-name, else the model itself."""
        names = self.flags.get("served-model-name")
        if names:
            return tuple(str(name) for name in names) if isinstance(names, list) else (str(names),)
        return (self.model,) if self.model else ()


def is_serving_image(image: str | None) -> bool:
    """Whether the image's entrypoint is `vllm serve`, so that its command is the arguments alone."""
    if not image:
        return False
    repository = image.partition("@")[0]
    head, _, tail = repository.rpartition(":")
    repository = head if head and "/" not in tail else repository
    return repository.removeprefix("docker.io/") in SERVING_IMAGES


def parse(
    text: str, *, image: str | None = None, entrypoint: str | None = None, own: str | None = None
) -> ServeCommand:
    """Read a command line that runs in `image` (None: on the host), under the `--entrypoint` of `docker run` (None: the
    image's own, which is `own` where that is stated). Never raises: errors become mistakes."""
    words, problem = split(text)
    words = ("vllm", *words) if own == "vllm" and words[:1] == ("serve",) else words
    entrypoint = entrypoint if image is not None else None
    if entrypoint:
        start = 0 if words[:1] == ("env",) else assignments(words)[1]
        words = (*words[:start], entrypoint, *words[start:])
    mistakes = [] if problem is None else [Mistake("error", "command-quotes", "", problem, "close the quote")]
    return _with_meaning(ServeCommand(text, words, image=image, entrypoint=entrypoint), mistakes)


def _with_meaning(command: ServeCommand, mistakes: list[Mistake]) -> ServeCommand:
    """Fill in the fields that follow from the command's words. `mistakes`: those found before."""
    parts = parts_of(command.words, serving=command.image is not None and command.entrypoint is None)
    command = replace(command, env=parts.env, program=parts.program, parts=parts)
    if parts.program and parts.program[0].rsplit("/", 1)[-1] in _CONTAINER_TOOLS:
        message = f"'{parts.program[0]}' starts a container, and the launch block describes one"
        fix = "put the image in `image` and what follows it in `command`; `gateway import FILE` reads a docker line"
        return replace(command, mistakes=(*mistakes, Mistake("error", "command-container", "", message, fix)))
    if not command.is_vllm:
        return replace(command, mistakes=tuple(mistakes))
    read = read_arguments(_behind_subcommand(parts, mistakes), vllm_flags())
    return replace(
        command,
        model=_model(read, mistakes),
        flags=read.flags,
        unknown=read.unknown,
        mistakes=(*mistakes, *read.mistakes),
    )


def _behind_subcommand(parts: CommandParts, mistakes: list[Mistake]) -> tuple[str, ...]:
    """The arguments of `vllm serve`. Where another subcommand stands there, or none, that is a mistake, and the rest is
    read as the arguments of `serve`."""
    if not lacks_subcommand(parts.program):
        return parts.arguments
    first, program = next(iter(parts.arguments), ""), " ".join(parts.program)
    if first in _OTHER_SUBCOMMANDS:
        message, rest = f"`{program} {first}` starts no server", parts.arguments[1:]
    elif one_typo_away(first, ("serve",)):
        message, rest = f"vLLM has no subcommand '{first}'; did you mean serve?", parts.arguments[1:]
    else:
        message, rest = f"`{program}` alone starts no server: its subcommand is missing", parts.arguments
    mistakes.append(Mistake("error", "command-subcommand", "", message, f"begin the line with `{program} serve`"))
    return rest


def _without_repeated_subcommand(positional: list[str], mistakes: list[Mistake]) -> list[str]:
    """The positional words without a `serve` that `vllm serve`, or the image whose entrypoint that is, has already."""
    repeated = 2 if positional[:2] == ["vllm", "serve"] else 1 if positional[:1] == ["serve"] else 0
    if repeated:
        words = " ".join(positional[:repeated])
        message = f"`vllm serve` is run already, so vLLM takes '{positional[0]}' for the model and refuses what follows"
        mistakes.append(Mistake("error", "command-words", "", message, f"leave out `{words}`"))
    return positional[repeated:]


def _without_references(words: list[str]) -> list[str]:
    """The words without those that a shell has yet to expand: it may make any words of them, or none."""
    kept, is_open = [], False
    for word in words:
        if is_open:
            is_open = "}" not in word
        elif is_reference(word):
            is_open = word.count("{") > word.count("}")
        else:
            kept.append(word)
    return kept


def _model(read: ParsedArguments, mistakes: list[Mistake]) -> str | None:
    """The model: --model, which vLLM puts first, else the first positional word. Further words are a mistake."""
    named = read.flags.get("model")
    positional = _without_repeated_subcommand(list(read.positional), mistakes)
    model = named if isinstance(named, str) else positional.pop(0) if positional else None
    positional = _without_references(positional)
    if positional:
        words = masked_keys(" ".join(MASK if word in read.private else word for word in positional))[:60]
        near = f"vllm: error: unrecognized arguments: {words}"
        mistakes.append(Mistake("error", "command-words", "", near, "leave these words out, or put quotes around them"))
    return model


def with_changes(command: ServeCommand, changes: Mapping[str, Any]) -> ServeCommand:
    """The command with flags set as a profile says: {"max-model-len": 200000}; the value "none" leaves a flag out, true
    and false set a switch. Underscores in names count as dashes, except in members (`compilation-config.use_inductor`).
    New flags stand at the end."""
    arguments = _without(command.parts.arguments, {_name(flag) for flag in changes})
    for flag, value in changes.items():
        arguments += _written(_name(flag), value)
    parts = command.parts
    words = (*parts.before, *arguments)
    if parts.script is not None:
        script = _with_new_arguments(command.words[parts.script], parts, arguments)
        words = (*command.words[: parts.script], script, *command.words[parts.script + 1 :])
    plain = ServeCommand(shlex.join(words), tuple(words), image=command.image, entrypoint=command.entrypoint)
    return _with_meaning(plain, [])


def _name(flag: str) -> str:
    return dashed(f"--{flag.lstrip('-')}")[2:]


def _written(name: str, value: Any) -> list[str]:
    if value == "none" or value is None:
        return []
    if "." in name:  # a member of a flag's JSON: false is its value, and switches nothing off
        return [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    if isinstance(value, bool):
        return [f"--{name}"] if value else [f"--no-{name}"]
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value)]
    values = value if isinstance(value, list) else [value]
    return [f"--{name}", *(str(inner) for inner in values)]


def _without(arguments: tuple[str, ...], names: set[str]) -> list[str]:
    """The arguments without these flags and their values, however the flags are written."""
    dropped: set[int] = set()
    for name, start, end in read_arguments(arguments, vllm_flags()).spans:
        if name in names:
            dropped.update(range(start, end))
    return [word for i, word in enumerate(arguments) if i not in dropped]


def _with_new_arguments(script: str, parts: CommandParts, arguments: list[str]) -> str:
    """The text for `sh -c` with other arguments after the program."""
    match = re.search(r"(?<!\S)" + r"\s+".join(map(re.escape, parts.program)) + r"(?!\S)", script)
    if match is None:  # quoted in the script itself: nothing to put the arguments into
        return script
    end = end_of_command(script, match.start())
    words = map(_script_word, [*parts.program, *arguments])
    return f"{script[: match.start()]}{' '.join(words)} {script[end:]}".strip()


def _script_word(word: str) -> str:
    """The word as a shell reads it. References stay references: the shell of the script puts their values in."""
    if not is_reference(word):
        return shlex.quote(word)
    return '"' + re.sub(r'(["\\`])', r"\\\1", word) + '"'
