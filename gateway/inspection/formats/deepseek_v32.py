"""DeepSeek V3.2: DSML in `<｜DSML｜function_calls>`."""

from __future__ import annotations

from gateway.inspection.formats.dsml import Dsml


class DeepSeekV32(Dsml):
    def __init__(self) -> None:
        super().__init__("deepseek_v32", "function_calls")
