"""The last good version of routes.yaml: kept for its owner, found for the file that it is of, and for no other."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from gateway.config.load import LAST_GOOD, keep_last_good, last_good

GOOD = "server: {data: DATA}\nbackends: {a: {url: 'http://10.0.0.1:8001'}}\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "routes.yaml"


@pytest.mark.parametrize(
    "broken", ["server: {data: DATA}\nbackends: {a: {slots:4}}\n", "server:\n  data: 'DATA'\n bad\n"]
)
@pytest.mark.parametrize("data", ["./state", "elsewhere", "${PLACE}"])
def test_a_broken_file_finds_it_in_its_data(
    file: Path, monkeypatch: pytest.MonkeyPatch, data: str, broken: str
) -> None:
    monkeypatch.setenv("PLACE", str(file.parent / "there"))
    text = GOOD.replace("DATA", f'"{data}"')
    folder = Path(data) if "$" not in data else file.parent / "there"
    keep_last_good(file, text, folder)
    file.write_text(broken.replace("DATA", data).replace("'", '"'))
    found = last_good(file)
    assert found is not None
    assert found.text == text
    assert list(found.snapshot.backends) == ["a"]
    assert stat.S_IMODE((folder / LAST_GOOD).stat().st_mode) == 0o600


def test_a_file_that_says_nothing_any_more_finds_it_in_the_default_place(file: Path) -> None:
    keep_last_good(file, GOOD.replace("DATA", "./state"), Path("state"))
    file.write_bytes(b"\xff\xfe\x00")
    assert last_good(file) is not None


def test_that_of_another_file_is_not_taken(file: Path) -> None:
    keep_last_good(file, GOOD.replace("DATA", "./state"), Path("state"))
    other = file.with_name("other.yaml")
    other.write_text("backends: [")
    assert last_good(other) is None
    file.write_text("backends: [")
    assert last_good(file.relative_to(file.parent)) is not None


def test_one_that_is_good_no_longer_is_not_taken(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADDRESS", "10.0.0.1")
    keep_last_good(file, "backends: {a: {url: 'http://${ADDRESS}:8001'}}", Path("state"))
    file.write_text("backends: [")
    assert last_good(file) is not None
    monkeypatch.delenv("ADDRESS")
    assert last_good(file) is None
    (Path("state") / LAST_GOOD).write_bytes(b"\xff")
    assert last_good(file) is None


def test_a_place_that_cannot_be_written_is_a_warning(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    Path("state").write_text("a file")
    with caplog.at_level(logging.WARNING):
        keep_last_good(file, GOOD, Path("state"))
    assert "cannot be written" in caplog.text
