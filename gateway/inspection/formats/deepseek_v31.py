"""DeepSeek V3.1: `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`."""

from __future__ import annotations

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import NAMED, read_name
from gateway.inspection.formats.deepseek_v3 import SEPARATOR, DeepSeekV3
from gateway.inspection.offered_tools import OfferedTools


class DeepSeekV31(DeepSeekV3):
    name = "deepseek_v31"
    _named = NAMED

    def _head(self, cursor: Cursor, tools: OfferedTools) -> str:
        name = read_name(cursor, tools)
        cursor.expect(SEPARATOR)
        return name
