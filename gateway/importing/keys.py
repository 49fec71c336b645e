"""API keys of the source: a reference stays one, a key that is written out is never copied."""

from __future__ import annotations

import re

from gateway.config.problems import Path
from gateway.importing.draft import Notes

_ENVIRON = re.compile(r"os\.environ/\s*([A-Za-z_]\w*)", re.ASCII)
_VARIABLE = re.compile(r"\$\{(?:env\.)?([A-Za-z_]\w*)(:-[^{}]*)?\}", re.ASCII)
# What people write where a client library wants some key and the server none.
_NO_KEY = re.compile(
    r"(sk-)?(none|null|empty|dummy|fake|fake-key|no-?key(-(required|needed))?|not-?(needed|required|used)|unused|x+"
    r"|ollama|lm-?studio|llama-?cpp|vllm|local|anything|placeholder|na|n/a|1234|your[-_ ].*|<.*>)",
    re.IGNORECASE,
)


def reference(text: str) -> str | None:
    """`os.environ/X`, `${X}`, `${env.X}`, `${X:-default}` as routes.yaml writes it; None = `text` is no reference. A
    default is not kept: it may be a key."""
    if found := _ENVIRON.fullmatch(text):
        return f"${{{found[1]}}}"
    found = _VARIABLE.fullmatch(text)
    return f"${{{found[1]}}}" if found else None


def is_no_key(text: str) -> bool:
    """Does it only stand for "no key"?"""
    return _NO_KEY.fullmatch(text.strip()) is not None


def variable_name(text: str) -> str:
    """A name for the environment made of any text: `qwen3.6-35b` -> `QWEN3_6_35B`."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").upper() or "KEY"
    return f"_{name}" if name[0].isdigit() else name


class Keys:
    """Turns the keys of a source into `${NAME}`; the same key gets the same name, another one another."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._names: dict[str, str] = {}  # a written key -> the name that stands for it

    def kept(self, value: str, path: Path, name: str) -> str:
        """How routes.yaml says the key `value`: its reference, else `${name}` with a note that it is to be set."""
        if (found := reference(value)) is not None:
            return found
        if value not in self._names:
            used = set(self._names.values())
            numbered = (f"{name}_{number}" for number in range(2, len(used) + 3))
            self._names[value] = next(one for one in (name, *numbered) if one not in used)
        chosen = self._names[value]
        self._notes.to_do(
            path, f"the key itself is not copied: routes.yaml says ${{{chosen}}}", f"put {chosen}=... into .env"
        )
        return f"${{{chosen}}}"
