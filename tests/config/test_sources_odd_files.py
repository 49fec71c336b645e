"""Files that are none, or hold what nobody can mean: a clear problem, and nothing waits."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.main import cli
from gateway.config import sources
from gateway.config.document import MAX_DEPTH, MAX_NODES
from gateway.config.load import load, load_text
from gateway.config.problems import ConfigError
from gateway.config.sources import MOST, Sources, look, read_file
from tests.limits import within

FINE = "backends: {a: {url: 'http://127.0.0.1:1'}}\n"
SOON = 10.0  # seconds; a hang lasts for ever


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PATIENCE", 0.2)
    monkeypatch.setattr(Sources.read, "__defaults__", (0.2,))
    monkeypatch.setattr(read_file, "__defaults__", (MOST, 0.2))


def problems(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    return str(caught.value)


def a_socket(path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.path.relpath(path))


ODD: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "directory": os.mkdir,
    "socket": a_socket,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "silent device": lambda path: path.symlink_to("/dev/ptmx"),
    "loop": lambda path: path.symlink_to(path),
    "huge": lambda path: path.write_bytes(b"#" * (MOST + 1)),
    "utf-16": lambda path: path.write_bytes(FINE.encode("utf-16")),
    "latin-1": lambda path: path.write_bytes(b"backends: {a: \xe9}\n"),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_of_text_is_a_problem_of_the_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "routes.yaml"
    ODD[kind](path)
    with within(SOON):
        told = problems(path)
    line = ":1" if kind in ("utf-16", "latin-1") else ""
    assert told.startswith(f"{path}{line}  ")
    assert "cannot be read" in told or "not UTF-8" in told


@pytest.mark.parametrize("kind", ODD)
def test_neither_is_it_a_secret_nor_an_env_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ODD[kind](tmp_path / "odd")
    path = tmp_path / "routes.yaml"
    path.write_text("server: {env_file: odd}\n" + FINE)
    assert f"{path}:1  server.env_file: 'odd': it cannot be read as text" in problems(path)
    path.write_text("backends:\n  a: {url: 'http://127.0.0.1:1', api_key: '${file:odd}'}\n")
    assert f"{path}:2  backends.a.api_key: file 'odd'" in problems(path)


def test_a_pipe_is_read_when_somebody_writes_to_it(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(FINE,))
    writer.start()
    loaded = load(path, {})
    writer.join()
    assert list(loaded.snapshot.backends) == ["a"]
    assert path not in loaded.sources  # it cannot be read again


def test_a_look_at_what_has_become_a_pipe_waits_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with within(0.2):
        assert look([path, tmp_path, Path("/dev/zero")]) == dict.fromkeys([path, tmp_path, Path("/dev/zero")])


def test_the_commands_take_a_process_substitution_and_refuse_a_silent_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    gateway = f"{sys.executable} -m gateway"
    for command, code in {
        f"{gateway} check <(cat {tmp_path}/fine.yaml)": 0,
        f"cat {tmp_path}/fine.yaml | {gateway} check /dev/stdin": 0,
        f"{gateway} check /dev/stdin < {tmp_path}/fine.yaml": 0,
        f"{gateway} check {tmp_path}/pipe": 1,
        f"{gateway} usage --config {tmp_path}/pipe": 1,
        f"{gateway} import {tmp_path}/pipe -o -": 1,
        f"{gateway} explain a --config {tmp_path}/fine.yaml --request {tmp_path}/pipe": 2,
    }.items():
        (tmp_path / "fine.yaml").write_text(FINE)
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, (command, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, command


def problems_of(text: str) -> str:
    """All of them, a line each; "" = there is none."""
    try:
        load_text(text, "routes.yaml", {})
    except ConfigError as error:
        return str(error)
    return ""


# -- what is in them --------------------------------------------------------------------------------------------------

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
BOMB += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 30))
TOO_MUCH = {
    "flow": "a: " + "[" * 5000 + "]" * 5000,
    "open": "a: " + "[" * 20_000,
    "mappings": "a: " + "{a: " * 5000 + "}" * 5000,
    "block": "\n".join(" " * depth + "a:" for depth in range(1200)),
    "dashes": "- " * 5000,
    "params": FINE + "aliases: {w: {use: [a], params: {x: " + "[" * 200 + "]" * 200 + "}}}",
    "laughs": BOMB,
    "values": "a:\n" + "- x\n" * 120_000,
    "itself": "a: &a [*a]",
    "number": FINE + "aliases: {w: {use: [a], params: {temperature: 1e400}}}",
    "nul": "a: 1\nb: \0",
    "bell": "a: 1\nb: \a",
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_nobody_can_mean_is_a_problem_with_its_line(name: str) -> None:
    with within(4 * SOON), pytest.raises(ConfigError) as caught:
        load_text(TOO_MUCH[name], "routes.yaml", {})
    assert len(caught.value.problems) < 10
    words = ("too deeply", "too large", "contains itself", "control characters")
    told = [problem for problem in caught.value.problems if any(word in problem.message for word in words)]
    assert told
    assert told[0].line is not None


@given(st.integers(1, 80), st.booleans())
def test_params_are_as_deep_as_they_may_be_or_refused(depth: int, lists: bool) -> None:
    value = "[" * depth + "]" * depth if lists else "{a: " * depth + "1" + "}" * depth
    told = problems_of(FINE + f"aliases: {{w: {{use: [a], params: {{x: {value}}}}}}}\n")
    assert not told or ("too deeply" in told and depth > MAX_DEPTH - 10)
    assert told or depth <= MAX_DEPTH


def test_as_many_values_as_allowed_are_read() -> None:
    assert MAX_NODES > 10_000
    with pytest.raises(ConfigError) as caught:
        load_text("a:\n" + "- x\n" * 20_000, "routes.yaml", {})
    assert "too large" not in str(caught.value)


def test_a_nul_in_an_env_file_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"A=1\nB=\0x\n")
    (tmp_path / "routes.yaml").write_text(FINE)
    assert f"{tmp_path}/.env:2  a NUL character" in problems(tmp_path / "routes.yaml")


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_problems_are_lines_without_control_characters(key: str) -> None:
    told = problems_of(f"{json.dumps(key)}: {json.dumps({key: key})}\n")
    assert not any(char in told for char in "\x1b\x07\x9b\r\u202e\u2028\u2066")
    assert all(line.startswith("routes.yaml") for line in told.split("\n"))


def test_check_of_a_directory_or_nothing_is_wrong_usage(tmp_path: Path) -> None:
    assert CliRunner().invoke(cli, ["check", str(tmp_path)]).exit_code == 2
    assert CliRunner().invoke(cli, ["check", str(tmp_path / "none")]).exit_code == 2
