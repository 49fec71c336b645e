"""MiniMax M2: `<minimax:tool_call><invoke name="..."><parameter name="...">...`: DeepSeek's DSML without a prefix."""

from __future__ import annotations

from gateway.inspection.formats.dsml import Dsml


class MinimaxM2(Dsml):
    """The wrapper may be missing."""

    def __init__(self) -> None:
        super().__init__("minimax_m2", "minimax:tool_call", prefix="", arguments=())
