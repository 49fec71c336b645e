"""Lists of voices, in every shape that speech servers give them."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.apps.media.voices import NAME_MOST, read_voices


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (["a", "b"], ["a", "b"]),
        ({"voices": [{"voice_id": "x", "name": "X"}, {"filename": "y.wav", "display_name": "Y"}]}, ["x", "y.wav"]),
        ({"data": [{"id": "d"}]}, ["d"]),
        ([None, 3, "", "v" * (NAME_MOST + 1), {}, []], []),
        ("nonsense", []),
        ({"voices": {"a": 1}}, []),
    ],
)
def test_lists_of_voices_are_read_in_every_shape(answer: Any, names: list[str]) -> None:
    assert [voice.id for voice in read_voices(answer)] == names
