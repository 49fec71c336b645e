"""A stream that another backend goes on with: no text is lost or comes twice, and the usage is that of both."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.resuming import INTERRUPTED, WITH_USAGE, chain

pytestmark = pytest.mark.decided_both_ways


SCRIPT = (
    "One line.\n\n  Two,  with spaces   and\ttabs\n```py\nif x:\n    y = '\u00e9\U0001f600\u4e2d'\n```\nthe end \n\n so"
)


@settings(max_examples=40, deadline=None)
@given(
    cut=st.integers(1, 60), limit=st.none() | st.integers(1, 60), stop=st.sampled_from([None, "the end", "y = '\u00e9"])
)
@example(cut=4, limit=None, stop=None)
def test_no_cut_loses_or_repeats_anything(cut: int, limit: int | None, stop: str | None) -> None:
    async def joined() -> None:
        async with chain() as c:
            more: dict[str, Any] = {"vllm_xargs": {"script": SCRIPT}, **WITH_USAGE}
            more |= {"max_tokens": limit} if limit is not None else {}
            more |= {"stop": stop} if stop is not None else {}
            whole = await c.ask(**more)
            tokens = whole.chunks[-1]["usage"]["completion_tokens"]
            c.sims["a"].fault("die_mid", after=min(cut, tokens - 1))
            reply = await c.ask(**more)
            c.sims["a"].clear()
            if tokens == 1:
                assert INTERRUPTED in reply.body or reply.ended
                return
            if reply.ended:
                assert reply.text == whole.text
                assert reply.chunks[-1]["usage"] == whole.chunks[-1]["usage"]
            else:  # nothing but white space was sent
                assert INTERRUPTED in reply.body
                assert not reply.text.strip()

    asyncio.run(joined())


async def test_the_client_that_counts_along_sees_the_tokens_of_both() -> None:
    async with chain() as c:
        options: dict[str, Any] = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        whole = await c.ask(**options)
        c.sims["a"].fault("die_mid", after=7, count=1)
        reply = await c.ask(**options)
        counts = [chunk["usage"]["completion_tokens"] for chunk in reply.chunks if chunk.get("usage")]
        assert counts == sorted(counts)
        assert reply.chunks[-1]["usage"] == whole.chunks[-1]["usage"]
        c.sims["a"].clear()
