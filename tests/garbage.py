"""What only a garbage collection frees: objects that nobody refers to but each other."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Only `garbage` collects."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def is_ours(one: object) -> bool:
    if type(one).__module__.startswith("gateway."):
        return True
    # Asked by type: what another library left behind may raise at any attribute (jinja2's Undefined does).
    if isinstance(one, types.FrameType):
        return "/gateway/" in one.f_code.co_filename
    return isinstance(one, types.CoroutineType) and "/gateway/" in one.cr_code.co_filename


def garbage() -> list[str]:
    """What of the gateway nobody refers to any more, and a collection has to free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = [type(one).__qualname__ for one in gc.garbage if is_ours(one)]
    gc.garbage.clear()
    gc.collect()
    return sorted(found)
