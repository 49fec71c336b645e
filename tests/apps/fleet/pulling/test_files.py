"""The hub's list of files, and hashes of what is on the disk."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from gateway.apps.fleet.pulling.files import Broken, File, Index, as_data, index_of, missing, oid_of, wrong
from tests.apps.fleet.pulling.machines import COMMIT, index


def test_an_index_survives_its_way_to_another_node() -> None:
    found = index_of(index())
    assert index_of(as_data(found)) == found
    assert (found.revision, found.weights) == (COMMIT, 7000)


@pytest.mark.parametrize(
    "data",
    [
        None,
        {"sha": COMMIT},
        {"sha": "main", "siblings": []},
        {"sha": COMMIT, "siblings": [{"rfilename": "../../.ssh/authorized_keys", "size": 1}]},
        {"sha": COMMIT, "siblings": [{"rfilename": "/etc/passwd", "size": 1}]},
        {"sha": COMMIT, "siblings": [{"rfilename": "a", "size": -1}]},
        {"sha": COMMIT, "siblings": [{"rfilename": "a"}]},
        {"sha": COMMIT, "siblings": [{"rfilename": "a", "size": 10**400}]},
        {"sha": COMMIT, "siblings": [{"rfilename": "a\r/etc/passwd", "size": 1}]},
        {"sha": COMMIT, "siblings": [{"rfilename": "a\x1b]0;title\x07", "size": 1}]},
    ],
)
def test_a_list_that_no_hub_writes_is_refused(data: Any) -> None:
    with pytest.raises(Broken):
        index_of(data)


def test_a_file_is_held_against_size_and_hash(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "b").write_bytes(b"two")
    git = hashlib.sha1(b"blob 3\0one").hexdigest()
    assert oid_of(str(tmp_path / "a"), True, lambda done: None) == git
    files = Index(COMMIT, (File("a", 3, git), File("b", 3, hashlib.sha256(b"TWO").hexdigest()), File("c", 1)))
    assert [file.name for file in missing(str(tmp_path), files)] == ["c"]
    told: list[int] = []
    there = Index(COMMIT, files.files[:2])
    assert [file.name for file in wrong(str(tmp_path), there, told.append)] == ["b"]
    assert told == [3, 6]
