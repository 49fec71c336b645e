"""The data about other gateways' settings: every row can be used, and none says what another says."""

from __future__ import annotations

from typing import get_args

import pytest

from gateway.apps.importing.draft import Kind
from gateway.apps.importing.import_command import FORMATS
from gateway.apps.importing.source import NONE, counterparts, data_of

SECTIONS = {
    "litellm": {"deployment", "router_settings", "litellm_settings", "general_settings", "top"},
    "llama-swap": {"top"},
    "olla": {"server", "top"},
}


def test_there_are_rows_for_every_format() -> None:
    assert set(data_of("counterparts")) == set(FORMATS) == set(SECTIONS)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_row_is_whole_and_no_key_has_two(name: str) -> None:
    seen: list[tuple[str, str]] = []
    for row in data_of("counterparts")[name]:
        assert set(row) <= {"message", "hint", "kind", "keys"}, row
        assert row["message"]
        assert row.get("kind", NONE[0]) in get_args(Kind)
        assert set(row["keys"]) <= SECTIONS[name], row
        seen += [(section, key) for section, keys in row["keys"].items() for key in keys]
    assert len(seen) == len(set(seen))


def test_what_is_left_out_is_the_default() -> None:
    assert counterparts("olla", "server")["read_timeout"] == NONE
    assert counterparts("litellm", "router_settings")["timeout"][0] == "changed"
    assert "odd" not in counterparts("litellm", "top")
