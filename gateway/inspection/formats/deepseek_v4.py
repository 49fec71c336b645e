"""DeepSeek V4: DSML in `<｜DSML｜tool_calls>`, at times `<｜DSML｜toolcalls>`; V4.1 puts a blank before every tag's
name."""

from __future__ import annotations

from gateway.inspection.formats.dsml import Dsml


class DeepSeekV4(Dsml):
    def __init__(self) -> None:
        super().__init__("deepseek_v4", "tool_calls", also=("toolcalls", "tool"))


class DeepSeekV41(Dsml):
    def __init__(self) -> None:
        super().__init__("deepseek_v41", "calls", prefix="｜DSML｜ ")
