"""What the process itself is told before it serves: how to keep memory, and when to look for cycles."""

from __future__ import annotations

import contextlib
import gc

# glibc's mallopt parameters (malloc.h). Bodies of 100 KB and more come and go with every agent's request; by default
# each of them is mapped anew and given back, page fault by page fault. Those of 4 MiB and more are: they are rare, and
# between small ones that stay they would leave holes of their size, so that what a few of them took stayed for ever.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3


def tune() -> None:
    """For a long-running server; measured in docs/performance.md. Does nothing where it cannot."""
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, 4 * 1024 * 1024)
        mallopt(_TRIM_THRESHOLD, 128 * 1024 * 1024)
        mallopt(_TOP_PAD, 4 * 1024 * 1024)
    # What was imported stays: no need to walk it again and again. And a request leaves few cycles behind.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
