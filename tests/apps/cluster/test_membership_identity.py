"""What a gateway remembers of itself: whatever stands in the file, it starts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.apps.cluster.membership import NAME, GatewayIdentity, load_identity, save_identity

GOOD: dict[str, Any] = {"owner": "someone", "gateways": 3}
OWNERS: list[Any] = ["", "a/b", "a\tb", 5, None]
COUNTS: list[Any] = [0, -1, 10**30, 1.5, "3"]
WRONG = [*(("owner", value) for value in OWNERS), *(("gateways", value) for value in COUNTS)]
OTHER: list[Any] = [[], 5, "x", None]
ODD: dict[str, bytes] = {
    "empty": b"",
    "half": json.dumps(GOOD).encode()[:-5],
    "junk": b"\xff\x00" * 1000,
    "no text": b'{"owner": "\xff"}',
    "deep": b'{"x": ' + b"[" * 50_000,
    "long": b'{"owner": "' + b"x" * 10_000_000 + b'"}',
    **{f"{key}: {value!r}": json.dumps({**GOOD, key: value}).encode() for key, value in WRONG},
    **{repr(value): json.dumps(value).encode() for value in OTHER},
}


@pytest.mark.parametrize("name", ODD)
def test_odd_content_is_a_new_beginning(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / NAME).write_bytes(ODD[name])
    identity = load_identity(tmp_path)
    assert (len(identity.owner), identity.gateways) == (32, 1)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["a directory", "a pipe"])
def test_what_is_no_file_is_a_new_beginning(tmp_path: Path, make: Any) -> None:
    make(tmp_path / NAME)
    assert load_identity(tmp_path).gateways == 1


def test_what_was_remembered_is_known(tmp_path: Path) -> None:
    save_identity(tmp_path, GatewayIdentity("0f" * 16, 3))
    assert (load_identity(tmp_path).owner, load_identity(tmp_path).gateways) == ("0f" * 16, 3)
