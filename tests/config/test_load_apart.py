"""routes.yaml read in a process that ends: the same as read here, mistakes too, and read here where that fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Prints what `load_apart` found, which process has read the file, and whether this one has imported what that needs.
READ = """
import json, os, signal, sys, threading
from pathlib import Path
from gateway.config import load_apart as apart
from gateway.config.problems import ConfigError, NotRead
path, what = Path(sys.argv[1]), sys.argv[2]
here, pid = apart.load_here, os.getpid()

def read(path):
    if os.getpid() != pid and what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if os.getpid() != pid and what == "defect":
        raise RuntimeError("a defect")
    if what == "short":
        raise NotRead(str(path), "files")
    return here(path)

def refuse():
    raise BlockingIOError(11, "no process can be forked")

apart.load_here = read
if what == "no fork":
    os.fork = refuse
if what == "no pipe":
    os.pipe = refuse
if what == "thread":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
try:
    loaded = apart.load_apart(path)
    same = here(path) if what == "same" else None
    found = {"backends": list(loaded.snapshot.backends), "key": loaded.snapshot.backends["a"].api_key.reveal()}
    found |= {"sources": [file.name for file in loaded.sources], "warnings": len(loaded.warnings)}
    found |= {"same": same == loaded}
except ConfigError as error:
    found = {"problems": str(error), "kind": getattr(error, "kind", ""), "sources": [f.name for f in error.sources]}
found["apart"] = "pydantic" not in sys.modules
print(json.dumps(found))
"""
ROUTES = """
backends: {a: {url: "http://127.0.0.1:9", model: m, api_key: "${KEY}"}}
aliases: {chat: [a]}
"""


def read(folder: Path, what: str = "", routes: str = ROUTES) -> dict[str, object]:
    config = folder / "routes.yaml"
    config.write_text(routes)
    (folder / ".env").write_text("KEY=k-12345678\n")
    command = [sys.executable, "-c", READ, str(config), what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_it_finds_what_reading_here_finds(tmp_path: Path) -> None:
    found = read(tmp_path, "same")
    assert (found["backends"], found["key"], found["same"]) == (["a"], "k-12345678", True)


def test_what_reading_needs_is_not_imported_here(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert found["apart"] is True
    assert found["sources"] == ["routes.yaml", ".env"]


def test_mistakes_are_the_same(tmp_path: Path) -> None:
    found = read(tmp_path, routes=ROUTES.replace("aliases: {chat: [a]}", "aliases: {chat: [b]}"))
    assert found["apart"] is True
    assert "unknown backend 'b'" in str(found["problems"])
    assert ":3  aliases.chat.use" in str(found["problems"])
    assert found["sources"] == ["routes.yaml", ".env"]


def test_a_shortage_of_the_child_is_told_as_one(tmp_path: Path) -> None:
    found = read(tmp_path, "short")
    assert found["kind"] == "files"
    assert "this process is short of" in str(found["problems"])


@pytest.mark.parametrize("what", ["killed", "defect", "no fork", "no pipe", "thread"])
def test_where_no_child_can_read_it_the_file_is_read_here(tmp_path: Path, what: str) -> None:
    found = read(tmp_path, what)
    assert (found["backends"], found["apart"]) == (["a"], False)
