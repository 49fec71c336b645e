"""Fields of `/status` as short texts."""

from __future__ import annotations

import pytest

from gateway.apps.console.status_fields import ago, short


@pytest.mark.parametrize(
    ("seconds", "said"), [(-1, "0 s"), (59, "59 s"), (60, "1 min"), (7000, "117 min"), (7200, "2 h"), (200_000, "2 d")]
)
def test_ages_in_words(seconds: float, said: str) -> None:
    assert ago(seconds) == said


def test_first_tokens_in_short() -> None:
    assert [short(value) for value in (0.0421, 0.9996, 12.34, None, True)] == ["42ms", "1.0s", "12.3s", "", ""]
