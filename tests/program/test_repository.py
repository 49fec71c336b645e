"""Rules for the repository as a whole."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.mutate_decisions import TESTS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = ("requirements.lock", "requirements-cloud.lock", "requirements-dev.lock")
LEFT_OUT = {
    ".git",
    ".venv",
    ".venv-vllm",
    ".venv-engines",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".import_linter_cache",
    ".hypothesis",
    ".pytest_cache",
    "state",
    "build",
    "dist",
}


def files() -> list[Path]:
    """All files of the repository; in a copy without git, all that are there."""
    if shutil.which("git") and (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    return [p for p in ROOT.rglob("*") if p.is_file() and not LEFT_OUT & set(p.relative_to(ROOT).parts)]


TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8", "replace") for path in files()}
MODULES = {name: text for name, text in TEXTS.items() if name.startswith("gateway/") and name.endswith(".py")}


def found(pattern: str, among: dict[str, str] = TEXTS) -> list[str]:
    """`file:line` of each match."""
    return [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}"
        for name, text in among.items()
        for match in re.finditer(pattern, text)
    ]


def packages(lock: str) -> dict[str, str]:
    """Name → its part of a lock file."""
    parts = re.split(r"^(?=[A-Za-z0-9])", (ROOT / lock).read_text(), flags=re.M)
    return {normal(re.split(r"[=\[ ]", part)[0]): part for part in parts if "==" in part}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# The patterns are written so that they do not match themselves.
@pytest.mark.parametrize("path", ["/[w]ork/", "/[t]mp/lab", "/[r]oot/", "/[h]ome/(?!user\\b)[a-z]+/"])
def test_no_path_of_one_machine_is_in_the_repository(path: str) -> None:
    assert found(path) == []


def test_no_package_index_is_named() -> None:
    """Where packages come from is the user's to say, in pip's own settings."""
    assert found(r"py[p]i\.org|python[h]osted\.org|registry\.npm[j]s|--(?:extra-)?index-[u]rl|--find-[l]inks") == []


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_a_version_and_hashes(lock: str) -> None:
    text = (ROOT / lock).read_text()
    locked = packages(lock)
    assert len(locked) > 20
    assert "://" not in text
    for name, part in locked.items():
        assert re.match(r"[\w.-]+(?:\[[\w,-]+\])?==[\w.]+", part), name
        assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", part)) >= 1, name


@pytest.mark.parametrize("name", ["httptools", "uvloop", "aiohttp", "msgspec", "pydantic-core"])
def test_what_is_compiled_is_locked_for_more_than_one_kind_of_machine(name: str) -> None:
    assert packages("requirements.lock")[name].count("--hash=") >= 12  # 3 Pythons, 2 machines, 2 C libraries


def test_every_dependency_is_in_the_locks() -> None:
    extras = PROJECT["optional-dependencies"]
    served = [*PROJECT["dependencies"], *extras["build"]]
    clouds = served + extras["cloud"]
    for lock, wanted in zip(LOCKS, (served, clouds, clouds + extras["dev"]), strict=True):
        names = {normal(re.split(r"[\[<>=!~; ]", line)[0]) for line in wanted}
        assert names - set(packages(lock)) == set(), lock


def test_only_the_lock_for_clouds_has_their_sdk() -> None:
    served, clouds = packages("requirements.lock"), packages("requirements-cloud.lock")
    assert not {"litellm", "boto3", "tokenizers", "openai"} & set(served)
    assert {name: clouds.get(name) for name in served} == served, "what serves is the same in both"


def test_continuous_integration_runs_the_same_command_as_people_do() -> None:
    assert re.search(r"^make test$", (ROOT / ".ci" / "run").read_text(), re.M)
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_the_licence_is_the_one_that_is_declared() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert "Apache-2.0" in (ROOT / "README.md").read_text()


def test_nothing_wraps_the_request_path() -> None:
    """Middleware costs more per request than all that the gateway does with it (docs/performance.md)."""
    assert found(r"BaseHTTP[M]iddleware|Streaming[R]esponse|@\w+\.middleware\(", MODULES) == []


@pytest.mark.parametrize("name", [name for name, text in MODULES.items() if text.strip()])
def test_every_module_says_what_it_is(name: str) -> None:
    assert ast.get_docstring(ast.parse(MODULES[name])), name


def test_every_ignored_type_has_its_reason_beside_it() -> None:
    code = {name: text for name, text in TEXTS.items() if name.endswith(".py")}
    assert found(r"# type: ignor[e](?!\[[\w, -]+\]  # \w)", code) == []


def test_the_files_that_mutation_of_decisions_runs_exist() -> None:
    assert [file for file in TESTS if not (ROOT / file).exists()] == []
