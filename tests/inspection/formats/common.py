"""What every format must do, given how it writes one call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gateway.inspection.mender import Call
from tests.inspection.mending import mend, mender

Write = Callable[[str, Mapping[str, Any]], str]
TAGS = 'Use <tool_call> and </tool_call>, </think>, [TOOL_CALLS] or <|tool_call>; ```x``` {"name": 1}'
VALUES: list[dict[str, Any]] = [
    {"path": "a.txt", "content": "x"},
    {"path": "007", "content": "true", "overwrite": True, "mode": 420, "ratio": 0.5},
    {"path": "a", "content": "x", "meta": {"a": {"b": [1, {"c": None}], "t": True}}, "tags": ["x", "y z"]},
    {"path": "Zürich 東京 🌧️", "content": "naïve\u00a0\u2028end"},
    {"path": "C:\\tmp\\q.txt", "content": 'def f():\n    return "1"\n\n\tprint(\\n)\n'},
    {"path": "doc.md", "content": TAGS},
    {"path": "", "content": ""},
]


class FormatTests:
    """`parser`: its name. `write`: one call in it. `joint`: between two calls. `before`: text that may precede one."""

    parser: str
    joint = "\n"
    before = "Let me see.\n\n"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        raise NotImplementedError

    @pytest.mark.parametrize("arguments", VALUES, ids=range(len(VALUES)))
    def test_a_call_arrives_as_it_was_meant(self, arguments: dict[str, Any]) -> None:
        mended = mend(self.parser, self.write("write_file", arguments))
        assert mended.calls == [("write_file", arguments)]
        assert mended.content == ""

    def test_a_call_without_arguments(self) -> None:
        assert mend(self.parser, self.write("ping", {})).calls == [("ping", {})]

    def test_several_calls_in_a_row_leave_nothing_between_them(self) -> None:
        oslo, rome = {"city": "Oslo"}, {"city": "Rome", "days": 3}
        calls = self.write("get_weather", oslo), self.write("get_weather", rome), self.write("ping", {})
        mended = mend(self.parser, self.joint.join(calls) + "\n")
        assert mended.calls == [("get_weather", oslo), ("get_weather", rome), ("ping", {})]
        assert mended.content == ""

    def test_text_around_a_call_stays(self) -> None:
        mended = mend(self.parser, self.before + self.write("ping", {}) + "\nDone, see above.")
        assert mended.calls == [("ping", {})]
        assert mended.content == self.before + "\nDone, see above."

    def test_a_tool_that_was_not_offered_is_no_call(self) -> None:
        text = self.write("rm_rf", {"path": "/"}) + " and so on"
        assert mend(self.parser, text).content == text
        prefix = self.write("ping_all", {})
        assert mend(self.parser, prefix).content == prefix

    def test_a_truncated_call_is_text_or_whole_but_never_half(self) -> None:
        arguments = {"path": "notes.txt", "content": "one two three", "mode": 420}
        text = self.write("write_file", arguments)
        for end in range(len(text)):
            mended = mend(self.parser, text[:end])
            assert mended.calls in ([], [("write_file", arguments)])
            assert mended.calls or mended.content == text[:end]

    def test_a_call_is_given_out_as_soon_as_it_is_complete(self) -> None:
        machine = mender(self.parser)
        given = [piece for char in self.write("ping", {}) + "\n\nT" for piece in machine.feed(char)]
        assert [piece.name for piece in given if isinstance(piece, Call)] == ["ping"]


class JsonFormatTests(FormatTests):
    """For formats whose arguments are JSON."""

    @pytest.mark.parametrize(
        "arguments",
        ['{"city": Oslo}', "{'city': 'Oslo'}", '{"city": "Oslo",}', '{"days": NaN}', '{"days": 1e999}', "[1]"],
    )
    def test_arguments_that_are_no_json_object_leave_the_text(self, arguments: str) -> None:
        text = self.write("get_weather", {"city": 1}).replace(json.dumps({"city": 1}), arguments)
        assert arguments in text
        mended = mend(self.parser, text)
        assert mended.calls == []
        assert mended.content == text

    def test_half_a_surrogate_pair_can_still_be_sent(self) -> None:
        text = self.write("get_weather", {"city": "\ud83c"})
        assert mend(self.parser, text).calls == [("get_weather", {"city": "\ud83c"})]

    def test_raw_newlines_in_a_string_are_taken(self) -> None:
        text = self.write("get_weather", {"city": "@"}).replace("@", "a\n\tb")
        assert mend(self.parser, text).calls == [("get_weather", {"city": "a\n\tb"})]
