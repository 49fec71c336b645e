"""MiniMax M3: M2's tags with a prefix, and one named after each argument."""

from __future__ import annotations

from tests.inspection.mending import mend


def test_m3_names_a_tag_after_each_argument() -> None:
    text = (
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">\n'
        "]<]minimax[>[<city>Oslo]<]minimax[>[</city>\n]<]minimax[>[<days>3]<]minimax[>[</days>\n"
        "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>"
    )
    assert mend("minimax_m3", text).calls == [("get_weather", {"city": "Oslo", "days": 3})]
