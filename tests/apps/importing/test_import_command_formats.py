"""Which format a file is in is seen by what is in it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.apps.importing.import_command import format_of
from gateway.apps.importing.source import read_source
from tests.apps.importing.support import DATA


@pytest.mark.parametrize(
    ("file", "kind"), [("litellm-config.yaml", "litellm"), ("llama-swap.yaml", "llama-swap"), ("olla.yaml", "olla")]
)
def test_each_example_is_known(file: str, kind: str) -> None:
    assert format_of(read_source((DATA / file).read_text(), file).data) == kind


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ({"litellm_settings": {}}, "litellm"),
        ({"backends": {"a": {"url": "http://h:1"}}}, "routes.yaml"),
        ({"peers": {"a": {"proxy": "http://h"}}}, "llama-swap"),
        ({"models": {"a": {"cmd": "x"}}}, "llama-swap"),
        ({"models": ["a"]}, None),
        ({"discovery": None, "models": None, "peers": 1}, None),
        ({}, None),
    ],
)
def test_others_by_their_keys(data: dict[str, Any], kind: str | None) -> None:
    assert format_of(data) == kind
