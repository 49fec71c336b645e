"""What the process itself is told before it serves: how to keep memory, when to look for cycles, how many files."""

from __future__ import annotations

import contextlib
import gc

# glibc's mallopt parameters (malloc.h). Bodies of 100 KB and more come and go with every agent's request; by default
# each of them is mapped anew and given back, page fault by page fault. Those of 4 MiB and more are: they are rare, and
# between small ones that stay they would leave holes of their size, so that what a few of them took stayed for ever.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_FILES = 1024 * 1024  # more open files than this are never needed


def tune() -> None:
    """For a long-running server; measured in docs/performance.md. Does nothing where it cannot."""
    raise_file_limit()
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


def file_limit() -> int:
    """How many files and connections this process may have open."""
    try:
        import resource
    except ImportError:  # not a Unix
        return 1024
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _FILES if soft == resource.RLIM_INFINITY else min(soft, _FILES)


def raise_file_limit() -> None:
    """As far as the system lets this process: the soft limit is often 1,024, for the sake of programs of long ago."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
