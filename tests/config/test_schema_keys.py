"""Every key of routes.yaml has its row and its default in docs/routes.md."""

from __future__ import annotations

import re

import pytest

from gateway.config.document import plain_value
from gateway.config.schema import all_keys, definitions
from tests.config.test_schema_docs import DOC

REFERENCE = DOC.partition("## Words of other programs")[0]
ROWS = {m[1]: m[0] for m in re.finditer(r"^\| `([a-z_.*]+)` \|.*$", REFERENCE, re.M)}
SAME_AS_DEFAULTS = re.compile(r"backends\.\*\.(timeouts|health|queue|images)\.")


def leaves() -> list[str]:
    keys = all_keys()
    return [key for key in keys if not any(other.startswith(f"{key}.") for other in keys)]


@pytest.mark.parametrize("key", [key for key in leaves() if not SAME_AS_DEFAULTS.match(key)])
def test_every_key_is_documented(key: str) -> None:
    assert key in ROWS


def test_no_key_is_documented_that_does_not_exist() -> None:
    assert set(ROWS) <= set(all_keys())


@pytest.mark.parametrize("key", [key for key, found in definitions().items() if key in ROWS and found.shown_default])
def test_the_documented_defaults_are_the_real_ones(key: str) -> None:
    found, documented = definitions()[key], ROWS[key].split("|")[3].strip(" `")
    value = documented if found.kind is None else found.kind.read(plain_value(documented))
    assert value == found.default
