"""A machine for launch scripts: a directory with programs that say how they were called."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.config.snapshot import Snapshot
from tests.apps.fleet.render.blocks import render, text_of

# Prints how it was called, as a line of JSON, to the file CALLS names.
CALLED = f"""\
#!{sys.executable} -IS
import json, os, sys
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], dict(os.environ)]) + "\\n")
"""


@dataclass(frozen=True)
class Call:
    program: str
    arguments: list[str]
    environ: dict[str, str]


@dataclass
class Machine:
    """A directory with fake programs, and a launch script in it. `files` are paths of the script -> those used here."""

    folder: Path
    files: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(exist_ok=True)
        for program in ("docker", "vllm", "bash", "systemctl"):
            self.program(program, CALLED)
        self.program("nvidia-smi", "#!/bin/sh\n")
        self.program("sleep", "#!/bin/sh\n")

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def run(
        self, text: str, *arguments: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        for there, here in self.files.items():
            text = text.replace(there, here)
        script = self.folder / "launch.sh"
        script.write_text(text)
        calls = self.folder / "calls"
        calls.write_text("")
        return subprocess.run(
            ["/bin/bash", str(script), *arguments],
            env={"PATH": f"{self.folder}/bin:/usr/bin:/bin", "CALLS": str(calls), **(environ or {})},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def calls(self, program: str) -> list[Call]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [call for call in (Call(*json.loads(line)) for line in lines) if call.program == program]


def started(machine: Machine, snapshot: Snapshot, program: str, environ: Mapping[str, str] | None = None) -> Call:
    """The call that the engine's script ends in."""
    done = machine.run(text_of(render(snapshot), "/launch.sh"), "run", environ=environ)
    assert done.returncode == 0, done.stderr
    (call,) = machine.calls(program)
    return call


def after(arguments: list[str], image: str) -> list[str]:
    return arguments[arguments.index(image) + 1 :]


def variables(call: Call) -> dict[str, str]:
    """What `docker run` would give to the container: --env NAME=VALUE, or --env NAME from its own environment."""
    found = {}
    for flag, value in zip(call.arguments, call.arguments[1:], strict=False):
        if flag == "--env":
            name, equals, text = value.partition("=")
            found[name] = text if equals else call.environ[name]
    return found
