"""Notations of calls and thoughts, by the model's name and what is declared."""

from __future__ import annotations

import pytest

from gateway.inspection.formats import FORMATS
from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.policy import formats_for, thoughts_for
from gateway.inspection.reasoning import REASONING, THINK
from tests.launch.test_families import FIELD


def test_the_family_s_format_is_tried_first_then_the_declared_ones_then_the_common_ones() -> None:
    def names(model: str | None, parser: str | None) -> list[str]:
        found = list(dict.fromkeys(format_.name for format_ in formats_for(model, parser)))
        assert found[-6:] == ["invoke", "antml", "tools", "function_call", "fenced", "fenced_call"]
        return found[:-6]

    assert names(None, None) == ["hermes", "qwen3_xml"]
    assert names("DeepSeek-V4-Flash", "hermes") == ["deepseek_v4", "hermes", "qwen3_xml"]
    assert names("Qwen3.6-35B", "hermes") == ["qwen3_xml", "hermes"], "qwen3_coder is the same format"
    assert names("gemma-4-26B-A4B-it", "gemma4")[:2] == ["gemma4", "pythonic"]
    assert names(None, "mistral") == ["mistral", "hermes", "qwen3_xml"]
    assert names(None, "a_plugin") == names("m", "none") == ["hermes", "qwen3_xml"]


@pytest.mark.parametrize("bar", ["｜", "|"])
@pytest.mark.parametrize("blank", ["", " "])
def test_the_bars_and_blanks_of_dsml_are_one_notation(bar: str, blank: str) -> None:
    mark = f"{bar}DSML{bar}{blank}"
    tags = ("tool_calls>", 'invoke name="look">', 'parameter name="city" string="true">Oslo')
    ends = ("parameter>", "invoke>", "tool_calls>")
    text = "".join(f"<{mark}{tag}" for tag in tags) + "".join(f"</{mark}{tag}" for tag in ends)
    tools = OfferedTools([{"function": {"name": "look"}}])
    found = [format_.parse(text, 0, tools, final=True).calls for format_ in formats_for("DeepSeek-V4-Flash", None)]
    assert [call.arguments for calls in found for call in calls] == ['{"city": "Oslo"}']


@pytest.mark.parametrize("model", FIELD)
def test_no_format_is_tried_twice(model: str) -> None:
    for parser in (None, "none", *FORMATS):
        formats = formats_for(model, parser)
        assert len(set(map(id, formats))) == len(formats)


def test_thoughts_are_marked_as_the_family_does() -> None:
    assert thoughts_for("Qwen3.6-35B-A3B", None) == THINK
    assert thoughts_for("Nemotron-3-Nano-30B", None) == THINK, "its parser is a plugin, its tags are the usual ones"
    assert thoughts_for("gemma-4-31B-it", "qwen3") == REASONING["gemma4"], "whatever parser was set by mistake"
    assert thoughts_for("m", "mistral") == REASONING["mistral"]
    assert thoughts_for("m", None) == THINK, "the one that most models use"
    assert thoughts_for("Llama-3.3-70B", None) is None
