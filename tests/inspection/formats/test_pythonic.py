"""Python calls in a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.inspection.formats.common import FormatTests
from tests.inspection.mending import mend


class TestPythonic(FormatTests):
    parser = "pythonic"
    before = "\n"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"[{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]"

    def test_text_around_a_call_stays(self) -> None:
        mended = mend(self.parser, "[ping()]\nDone.")
        assert (mended.calls, mended.content) == ([("ping", {})], "\nDone.")


def test_several_calls_in_one_list() -> None:
    text = "[get_weather(city='Oslo'), ping(), get_weather(city=\"Rome\", days=-3,)]"
    assert mend("pythonic", text).calls == [
        ("get_weather", {"city": "Oslo"}),
        ("ping", {}),
        ("get_weather", {"city": "Rome", "days": -3}),
    ]


def test_after_other_text_it_is_text() -> None:
    for text in ("Sure. [ping()]", "Sure.\n[ping()]", "`x` [ping()]"):
        assert mend("pythonic", text).content == text


def test_only_literals_are_taken() -> None:
    for call in (
        "get_weather('Oslo')",
        "get_weather(city='Os' + 'lo')",
        "get_weather(city=open('x'))",
        "ping(",
        "ping)",
    ):
        assert mend("pythonic", f"[{call}]").content == f"[{call}]"


def test_json_words_numbers_and_nested_literals() -> None:
    text = "[write_file(path='a', overwrite=true, meta={'a': [1, (2.5,), {'z': None}]}, ratio=1e3, mode=-7, tags=[])]"
    meta = {"a": [1, [2.5], {"z": None}]}
    given = {"path": "a", "overwrite": True, "meta": meta, "ratio": 1000.0, "mode": -7, "tags": []}
    assert mend("pythonic", text).calls == [("write_file", given)]


def test_escapes_mean_what_they_mean_in_python() -> None:
    text = r"""[get_weather(city='a\\n\n\x41\u00e9\101\'\d \\')]"""
    assert mend("pythonic", text).calls == [("get_weather", {"city": "a\\n\nA\u00e9A'\\d \\"})]


def test_the_wrapper_of_llama_4() -> None:
    assert mend("llama4_pythonic", "<|python_start|>[ping()]<|python_end|>").calls == [("ping", {})]


def test_deep_nesting_is_refused_and_not_followed() -> None:
    text = "[write_file(meta=" + "[" * 5000
    assert mend("pythonic", text).content == text
