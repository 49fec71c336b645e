"""The client contract runs on asyncio's event loop and on the gateway's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from gateway.transport.event_loop import Loop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.parent.name == "contract":
        return {"asyncio": asyncio.SelectorEventLoop, "uvloop": Loop}
    return {"asyncio": asyncio.SelectorEventLoop}
