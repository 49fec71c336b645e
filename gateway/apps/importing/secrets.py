"""Keys that a command line or an environment holds: never copied, always `${NAME}`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gateway.apps.importing.draft import Draft, Notes, too_large
from gateway.config.problems import Path

_NAMED = re.compile(r"TOKEN(?!S|IZ)|SECRET|PASSW|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL|_KEY$", re.IGNORECASE)
_LOOKS = re.compile(
    r"\b(?:hf_\w{6,}|sk-[\w-]{8,}|nvapi-[\w-]{8,}|gh[pousr]_\w{16,}|eyJ[\w-]{10,}\.[\w.-]+)|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)",
    re.ASCII,
)
_REFERENCE = re.compile(r"\$\{\w+(:?[-=?+][^{}]*)?\}|\$\w+", re.ASCII)
_FLAGS = {"--api-key": "VLLM_API_KEY", "--hf-token": "HF_TOKEN"}
_SWITCHED = frozenset(("", "0", "1", "true", "false"))  # HF_HUB_DISABLE_IMPLICIT_TOKEN=1 is no secret
_MOST = 200  # secrets of one source
_SHORTEST = 6  # characters of a value that is looked for everywhere


class Secrets:
    """Replaces secrets by `${NAME}` and notes each once."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._names: dict[str, str] = {}  # a written secret -> the variable that stands for it

    def value(self, name: str, text: str, path: Path) -> str:
        """The value of a variable: itself, unless the name or the value is that of a secret."""
        reference = _REFERENCE.fullmatch(text)
        if reference is not None:
            return text if "-" not in text and "=" not in text else f"${{{name}}}"
        if text.lower() not in _SWITCHED and (_NAMED.search(name) or _LOOKS.search(text)):
            return self._replaced(text, name, path)
        return self.mask(text)

    def words(self, given: Sequence[str], path: Path) -> list[str]:
        """The words of a command without control characters; the values of `--api-key` and `--hf-token`, and whatever
        looks like a key, are replaced."""
        words = ["".join(c if c.isprintable() else " " for c in word) for word in given]
        found: list[str] = []
        flag = ""
        for word in words:
            name, equals, value = word.partition("=")
            if flag and not word.startswith("-") and word not in ("$@", "$*"):
                found.append(self.value(_FLAGS[flag], word, path))
            elif name in _FLAGS and equals:
                found.append(f"{name}={self.value(_FLAGS[name], value, path)}")
            elif match := _LOOKS.search(word):
                found.append(word.replace(match[0], self._replaced(match[0], "HF_TOKEN", path)))
            else:
                found.append(self.mask(word))
            if word.startswith("-"):
                flag = word if word in _FLAGS else ""
        return found

    def _replaced(self, text: str, name: str, path: Path) -> str:
        if text not in self._names:
            if len(self._names) >= _MOST:
                raise too_large(self._notes.file, f"it has more than {_MOST} secrets", self._notes.line_of(path))
            used = self._names.values()
            numbered = (f"{name}_{number}" for number in range(2, len(used) + 3))
            chosen = next(one for one in (name, *numbered) if one not in used)  # two engines may have a key each
            self._names[text] = chosen
            hint = f"set {chosen} where the engine is started"
            self._notes.to_do(path, f"the value of {name} is not copied: it is ${{{chosen}}} here", hint)
        return f"${{{self._names[text]}}}"

    def mask(self, text: str) -> str:
        """`text` without any secret that was met so far, and without anything that looks like one."""
        self._notes.spend(len(self._names))
        for secret in sorted((s for s in self._names if len(s) >= _SHORTEST), key=len, reverse=True):
            text = text.replace(secret, f"${{{self._names[secret]}}}")
        return _LOOKS.sub("***", text)

    def clean(self, draft: Draft) -> None:
        """The last look over everything that will be written."""
        for section in (draft.nodes, draft.backends, draft.aliases):
            for entry in section.values():
                entry.keys = self._clean(entry.keys)
                entry.comment = [self.mask(line) for line in entry.comment]

    def _clean(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._clean(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._clean(inner) for inner in value]
        return self.mask(value) if isinstance(value, str) else value
