"""The command line of an engine, read as the engine's own parser reads it.

`parse` takes the text an operator would type (`vllm serve MODEL --port 8001 ...`, or the arguments alone where the
image's entrypoint is `vllm serve`) and gives a `ServeCommand`: the model, every flag by its full name with a typed
value, and what is wrong with the line. The flags that exist, their types and choices are data (`flags.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong with one word of a command line.

    `flag` is the flag's full name without dashes ("" for the line as a whole), `fix` the text to write instead."""

    severity: Literal["error", "warning"]
    rule: str
    flag: str
    message: str
    fix: str | None = None


@dataclass(frozen=True)
class ServeCommand:
    """One command line that starts an engine.

    `words`: the words as a shell splits them. `env`: the NAME=value words before the program. `program`: what is run,
    ("vllm", "serve"), or () where the words are only arguments. `model`: the positional argument, or --model.
    `flags`: full name without dashes ("max-model-len") -> value: int, float, str, bool for switches, plain data for
    JSON, a list for flags that take several words; a value that holds `${` is kept as text. The last of a repeated flag
    counts, as in argparse. `mistakes` are in the order of the words."""

    text: str = ""
    words: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = ()
    model: str | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    mistakes: tuple[Mistake, ...] = ()

    @property
    def is_vllm(self) -> bool:
        """Whether it starts a vLLM: its program is vLLM's, or there is no program (an image's entrypoint)."""
        return not self.program or self.program[0].rsplit("/", 1)[-1] == "vllm" or "vllm.entrypoints" in self.text


def parse(text: str) -> ServeCommand:
    """Read a command line. Never raises: what cannot be read is a mistake."""
    return ServeCommand(text=text)


def with_changes(command: ServeCommand, changes: Mapping[str, Any]) -> ServeCommand:
    """The command with flags set as a profile says: {"max-model-len": 200000}; the value "none" leaves a flag out, true
    and false set a switch. Underscores in names count as dashes."""
    return command
