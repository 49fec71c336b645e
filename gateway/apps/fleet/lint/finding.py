"""A finding of the lint, and the remark that a rule yields before its place in the file is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gateway.config.problems import Path
from gateway.printable import visible

Severity = Literal["error", "warning", "note"]
ORDER: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Remark:
    """A rule's remark. `fix`: text to paste, or the words to take out. `where`: path below the subject (a backend, an
    alias); `source`: who reported it, in words."""

    severity: Severity
    message: str
    fix: str
    source: str = ""
    where: Path = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark with its rule and its place. `path` is dotted; `line` counts from 1, None if not known."""

    severity: Severity
    rule: str
    path: str
    line: int | None
    message: str
    fix: str
    source: str = ""

    def as_json(self) -> dict[str, Any]:
        """{severity, rule, path, line, message, fix}; the message ends with the source."""
        message = f"{self.message} ({self.source})" if self.source else self.message
        return {
            "severity": self.severity,
            "rule": self.rule,
            "path": self.path,
            "line": self.line,
            "message": message,
            "fix": self.fix,
        }

    def __str__(self) -> str:
        """Two or three lines without control characters, whatever the file holds."""
        where = f"{self.path}" if self.line is None else f"line {self.line}  {self.path}"
        lines = [f"{self.severity}  {where}  [{self.rule}]", f"    {self.message}"]
        lines += [f"    fix: {self.fix}"] if self.fix else []
        lines += [f"    source: {self.source}"] if self.source else []
        return "\n".join(visible(line) for line in lines)
