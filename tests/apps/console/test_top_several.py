"""`gateway top` where several gateways share the fleet."""

from __future__ import annotations

import re
from typing import Any

from tests.apps.console.test_top import status, text


def shared(**more: Any) -> dict[str, Any]:
    return {"joined": True, "gateways": 3, "since": 400.0, "reason": "joined the gateways", **more}


def busy(name: str, **more: Any) -> dict[str, Any]:
    return {"backends": {name: {**status()["backends"]["qwen36"], **more}}}


def test_what_other_gateways_have_there_has_a_column() -> None:
    drawn = text(shared=shared(), **busy("qwen36", elsewhere=2))
    assert re.search(r"backend +state +busy +elsewhere +queue ", drawn)
    assert re.search(r"qwen36 +ready +1/4 \+2 +2 +3 +1 min: answers", drawn)
    assert re.search(r"qwen36 +ready +1/4 \+2 +3 +1 min: answers", text(shared=shared(), **busy("qwen36", elsewhere=0)))
    assert "at http://g:4000, up 10 min, one of 3 gateways" in drawn


def test_one_gateway_alone_says_nothing_of_others() -> None:
    drawn = text(shared=None, **busy("qwen36", elsewhere=0))
    assert "elsewhere" not in drawn
    assert "gateways" not in drawn


def test_that_redis_is_away_is_told_above_all() -> None:
    drawn = text(120, shared=shared(joined=False, since=280.0), **busy("qwen36", elsewhere=0, room=2))
    assert (
        "Redis is away for 12 min: this gateway goes on alone, with its share of the slots (1 of 3 gateways)" in drawn
    )
    assert re.search(r"backend +state +busy +share +queue ", drawn)
    assert re.search(r"qwen36 +ready +1/4 \+2 +2 +3 +1 min: answers", drawn)
    assert "one of 3 gateways" not in drawn
    assert "away" not in text(120, shared=shared())
