"""What the running gateway has seen beside what the file says."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from urllib.parse import urlsplit

from gateway.apps.fleet.checking.seen import seen_by_gateway
from simulator import SimVllm
from tests.support import running_gateway


async def test_a_window_with_a_digit_too_many_is_named() -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(SimVllm("a", context=131072).serve())
        routes = f"backends: {{a: {{url: '{url}', context: 1310720}}}}\n"
        gateway = await stack.enter_async_context(running_gateway(routes))
        await gateway.until_ready("a")
        snapshot = gateway.gateway.snapshot
        port = urlsplit(gateway.url).port or 0
        here = replace(snapshot, server=replace(snapshot.server, host="127.0.0.1", port=port))
        found = await asyncio.to_thread(seen_by_gateway, here)
    assert any(
        "1,310,720 is 10 times the 131,072 tokens that it serves: a digit too many?" in line for line in found["a"]
    )
    assert await asyncio.to_thread(seen_by_gateway, here) == {}, "nobody is there any more"
