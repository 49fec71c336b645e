"""How many strings a body may hold."""

from __future__ import annotations

import json

import pytest

from gateway.domain.body import STRINGS_MOST, read_fields
from gateway.errors import GatewayError


@pytest.mark.parametrize(("strings", "refused"), [(STRINGS_MOST, False), (STRINGS_MOST + 1, True)])
def test_a_body_holds_so_many_strings_and_no_more(strings: int, refused: bool) -> None:
    body = b'{"a":[' + b",".join([b'"a"'] * (strings - 1)) + b"]}"
    if not refused:
        assert len(read_fields(body)["a"]) == len(body) - len(b'{"a":}')
        return
    with pytest.raises(GatewayError) as error:
        read_fields(body)
    assert error.value.code == "request_too_large"
    assert f"{STRINGS_MOST:,} strings" in error.value.message


def test_quotes_in_a_text_are_no_strings() -> None:
    text = '"' * (2 * STRINGS_MOST + 10)
    assert json.loads(bytes(read_fields(json.dumps({"a": text}).encode())["a"])) == text
