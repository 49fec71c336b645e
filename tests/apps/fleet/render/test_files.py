"""Writing rendered files, installing them, and comparing them with what is installed: here, and over ssh."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gateway.apps.fleet.preflight.host import CommandResult
from gateway.apps.fleet.render.files import (
    Comparison,
    RenderedFile,
    Rendering,
    compare,
    is_here,
    write_file,
)
from gateway.apps.fleet.render.words import masked
from gateway.config.snapshot import Node, Snapshot
from tests.apps.fleet.render.blocks import fleet, one_backend, render, text_of

SNAPSHOT = one_backend(
    "vllm serve m --api-key ${KEY}", image="vllm/vllm-openai:v1", env={"HF_TOKEN": "${HF_TOKEN}"}, ssh="ops@n0"
)
PATHS = [
    "/etc/systemd/system/spark-it.service",
    "/usr/local/lib/spark/it/launch.sh",
    "/usr/local/lib/spark/compose.yaml",
]
ENV = "/etc/spark/spark-it.env"
SUDOERS = "/etc/sudoers.d/spark"


@dataclass
class Remote:
    """A machine behind ssh: its files, and how it was asked."""

    files: dict[str, str]
    denied: frozenset[str] = frozenset()
    asked: list[list[str]] = field(default_factory=list)

    def __call__(self, command: Sequence[str]) -> CommandResult:
        self.asked.append(list(command))
        paths = command[command.index("cat") + 1 :]
        wrong = [f"cat: {path}: No such file or directory" for path in paths if path not in self.files]
        wrong += [f"cat: {path}: Permission denied" for path in paths if path in self.denied]
        out = "".join(self.files[path] for path in paths if path in self.files and path not in self.denied)
        return CommandResult(1 if wrong else 0, out, "\n".join(wrong))


def installed(rendering: Rendering) -> dict[str, str]:
    return {file.path: file.text for file in rendering.files if file.node == "n0"}


def states(found: list[Comparison]) -> dict[str, str]:
    return {one.file.path: one.state for one in found}


def compared(snapshot: Snapshot, remote: Remote) -> list[Comparison]:
    return compare(render(snapshot), snapshot.nodes, remote, lambda node: False)


# -- over ssh ---------------------------------------------------------------------------------------------------------


def test_what_is_installed_as_rendered_takes_one_question_and_is_the_same() -> None:
    remote = Remote(installed(render(SNAPSHOT)), denied=frozenset([ENV, SUDOERS]))
    found = compared(SNAPSHOT, remote)
    assert states(found) == dict.fromkeys([*PATHS, ENV, SUDOERS], "same")
    ssh = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "ops@n0", "cat"]
    assert remote.asked == [[*ssh, *PATHS], [*ssh, ENV], [*ssh, SUDOERS]]
    assert {one.file.path: one.reason for one in found}[SUDOERS] == "not compared: only root reads it"


def test_a_flag_that_was_changed_by_hand_is_shown() -> None:
    files = installed(render(SNAPSHOT))
    script = PATHS[1]
    files[script] = files[script].replace("--api-key", "--max-model-len 200000 \\\n    --api-key")
    files.pop(PATHS[2])
    found = compared(SNAPSHOT, Remote(files))
    assert states(found) == {PATHS[0]: "same", script: "differs", PATHS[2]: "missing", ENV: "same", SUDOERS: "same"}
    diff = next(one.diff for one in found if one.state == "differs")
    assert "-    --max-model-len 200000 \\\n" in diff
    assert diff.startswith(f"--- installed n0{script}\n+++ rendered n0{script}\n")


def test_values_of_the_environment_file_are_never_shown_and_missing_names_are() -> None:
    files = {**installed(render(SNAPSHOT)), ENV: "# mine\nKEY=s3cret\nOTHER=x\n"}
    (env,) = [one for one in compared(SNAPSHOT, Remote(files)) if one.file.path == ENV]
    assert (env.state, env.diff) == ("differs", "+HF_TOKEN=\n")
    files[ENV] = "KEY=s3cret\nHF_TOKEN=hf_x\n"
    (env,) = [one for one in compared(SNAPSHOT, Remote(files)) if one.file.path == ENV]
    assert (env.state, env.diff) == ("same", "")


def test_a_machine_that_cannot_be_reached_is_asked_once_and_not_known() -> None:
    asked = []

    def run(command: Sequence[str]) -> CommandResult:
        asked.append(command)
        return CommandResult(255, "", "ssh: connect to host n0 port 22: No route to host\n")

    found = compare(render(SNAPSHOT), SNAPSHOT.nodes, run, lambda node: False)
    assert set(states(found).values()) == {"unknown"}
    assert {one.reason for one in found} == {"ssh ops@n0: ssh: connect to host n0 port 22: No route to host"}
    assert len(asked) == 1


def test_a_machine_that_does_not_answer_in_time_is_not_known() -> None:
    def run(command: Sequence[str]) -> CommandResult:
        return CommandResult(None, "", "ssh: no answer in time")

    found = compare(render(SNAPSHOT), SNAPSHOT.nodes, run, lambda node: False)
    assert {one.reason for one in found} == {"ssh ops@n0: no answer in time (within 30 s)"}


def test_a_file_that_cannot_be_read_is_not_known() -> None:
    found = compared(SNAPSHOT, Remote(installed(render(SNAPSHOT)), denied=frozenset([PATHS[1]])))
    assert states(found)[PATHS[1]] == "unknown"
    assert states(found)[PATHS[0]] == "same"


def test_nothing_is_asked_where_there_is_no_ssh_or_it_is_an_option() -> None:
    for ssh, reason in ((None, "has no `ssh`"), ("-oProxyCommand=id", "is an option")):
        nodes = {"n0": Node("n0", address="10.0.0.1", ssh=ssh)}
        remote = Remote({})
        found = compared(replace(SNAPSHOT, nodes=nodes), remote)
        assert all(one.state == "unknown" and reason in one.reason for one in found)
        assert remote.asked == []


# -- here -------------------------------------------------------------------------------------------------------------


def test_a_node_with_an_address_of_this_machine_is_here() -> None:
    assert is_here(Node("n", address="127.0.0.1"))
    assert not is_here(Node("n", address="192.0.2.1"))
    assert not is_here(Node("n"))


def test_files_of_this_machine_are_read_without_ssh(tmp_path: Path) -> None:
    rendering = render(SNAPSHOT)
    files = [file for file in rendering.files if file.path in (*PATHS, ENV)]
    here = [replace(file, path=f"{tmp_path}{file.path}") for file in files]
    for file in here[:-1]:
        write_file(replace(file, node=""), Path("/"))
    remote = Remote({})
    found = compare(Rendering(tuple(here), ()), SNAPSHOT.nodes, remote, lambda node: True)
    assert [one.state for one in found if not one.file.keep] == ["same", "same", "missing"]
    assert remote.asked == []


# -- secrets ----------------------------------------------------------------------------------------------------------

SECRETS = {
    "HF_TOKEN": "hf_o'ld$x",
    "MY_API_KEY": "key one",
    "DB_PASSWORD": 'p"w',
    "A_SECRET_B": "s3",
    "NOT": "shown",
    "TOKENIZERS_PARALLELISM": "shown",
    "MAX_TOKENS": "shown",
}


def test_secrets_of_both_sides_are_masked_in_the_difference() -> None:
    old = one_backend("m --api-key 'old one'", image="vllm/vllm-openai:v1", env=SECRETS, ssh="h")
    new_env = {name: f"new-{value}" for name, value in SECRETS.items()}
    new = one_backend("m --api-key 'new one'", image="vllm/vllm-openai:v1", env=new_env, ssh="h")
    found = compared(new, Remote(installed(render(old))))
    shown = "".join(one.diff for one in found)
    assert "new-shown" in shown
    assert "shown" in shown
    for value in ("hf_o", "ld$x", "key one", 'p"w', 's3"', "old one", "new one"):
        assert value not in shown, value
    assert {one.state for one in found} == {"same", "differs"}


def test_every_secret_of_every_file_is_masked_and_references_are_not() -> None:
    env = {**SECRETS, "OTHER_TOKEN": "${OTHER_TOKEN}"}
    rendering = render(one_backend("m --hf-token abcdefg --api-key ${KEY}", image="vllm/vllm-openai:v1", env=env))
    for file in rendering.files:
        for text in (masked(file.text, rendering.secrets), masked(file.text)):
            for value in ("hf_o", "key one", 'p"w', 'p\\"w', "abcdefg"):
                assert value not in text, (file.path, value)
            assert text.count("shown") == file.text.count("shown")
            assert text.count("${OTHER_TOKEN") == file.text.count("${OTHER_TOKEN")
            assert text.count("${KEY") == file.text.count("${KEY")


def test_the_default_of_a_reference_is_a_secret_too() -> None:
    env = {"HF_TOKEN": "${HF_TOKEN:-hf_abc123}", "EMPTY_TOKEN": "${EMPTY_TOKEN:-}"}
    rendering = render(one_backend("m --api-key ${KEY:-k3y-of-ours}", image="vllm/vllm-openai:v1", env=env))
    assert rendering.secrets == {"hf_abc123", "k3y-of-ours"}
    assert any("hf_abc123" in file.text for file in rendering.files)
    for file in rendering.files:
        for text in (masked(file.text, rendering.secrets), masked(file.text)):
            assert "hf_abc123" not in text, file.path
            assert "k3y-of-ours" not in text, file.path
        assert "hf_abc123" not in file.text or file.mode & 0o077 == 0, file.path


def test_nothing_else_is_masked() -> None:
    rendering = render(fleet())
    for file in rendering.files:
        assert masked(file.text, rendering.secrets) == file.text


# -- writing ----------------------------------------------------------------------------------------------------------


def file(text: str, mode: int = 0o755, keep: bool = False) -> RenderedFile:
    return RenderedFile("n", "/etc/x/y.env", text, mode, keep)


def test_a_file_is_new_then_unchanged_then_changed(tmp_path: Path) -> None:
    path = tmp_path / "n/etc/x/y.env"
    assert write_file(file("a\n"), tmp_path) == "new"
    before = path.stat()
    assert write_file(file("a\n"), tmp_path) == "unchanged"
    assert path.stat() == before
    assert write_file(file("b\n"), tmp_path) == "changed"
    assert write_file(file("b\n", 0o700), tmp_path) == "changed"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("b\n", 0o700)
    assert os.listdir(path.parent) == ["y.env"]


def test_values_of_the_operator_are_kept_and_new_names_appended(tmp_path: Path) -> None:
    path = tmp_path / "n/etc/x/y.env"
    assert write_file(file("# c\nA=\n", 0o600, keep=True), tmp_path) == "new"
    path.write_text("A=1")
    assert write_file(file("# c\nA=\n", 0o600, keep=True), tmp_path) == "kept"
    assert write_file(file("# c\nA=\nB=\n", 0o600, keep=True), tmp_path) == "changed"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("A=1\nB=\n", 0o600)


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "n/etc/x/y.env").mkdir(parents=True)
    with pytest.raises(OSError):
        write_file(file("a"), tmp_path)
    assert os.listdir(tmp_path / "n/etc/x") == ["y.env"]


# -- install.sh -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="install.sh needs root")
def test_install_puts_every_file_in_its_place_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    units = root / "etc/systemd/system"
    units.mkdir(parents=True)
    (units / "spark-gateway.service").write_text("# The gateway's own\n")
    (units / "spark-old.service").write_text("# Rendered by gateway fleet render from an earlier file\n")
    rendering = render(SNAPSHOT)
    for rendered in rendering.files:
        write_file(rendered, out)
    script = out / "n0/install.sh"
    elsewhere = re.sub(r'("\$1"|:04o|0\d{3}) /', rf"\1 {root}/", text_of(rendering, "/install.sh", "n0"))
    elsewhere = elsewhere.replace('"$here$2"', f'"$here${{2#{root}}}"').replace('<"$here$2"', f'<"$here${{2#{root}}}"')
    script.write_text(elsewhere.replace("/etc/systemd/system/spark-*", f"{units}/spark-*"))
    (tmp_path / "bin").mkdir()
    systemctl = tmp_path / "bin/systemctl"
    systemctl.write_text("#!/bin/sh\necho systemctl $@\n")
    systemctl.chmod(0o755)

    def run() -> str:
        environ = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
        done = subprocess.run(["bash", str(script)], env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    said = run()
    for rendered in rendering.files:
        if rendered.node == "n0" and rendered.path != "/install.sh":
            path = Path(f"{root}{rendered.path}")
            assert (path.read_text(), path.stat().st_mode & 0o777) == (rendered.text, rendered.mode)
            assert f"installed {path}" in said
    assert f"write a value for KEY into {root}{ENV}" in said
    assert "spark-old.service is of an earlier fleet: sudo systemctl disable --now spark-old.service" in said
    assert "spark-gateway" not in said
    assert "systemctl daemon-reload" in said

    (root / ENV[1:]).write_text("KEY=mine")
    said = run()
    assert "installed" not in said
    assert (root / ENV[1:]).read_text() == "KEY=mine\nHF_TOKEN=\n"
    assert "write a value for HF_TOKEN" in said
    assert "for KEY" not in said
