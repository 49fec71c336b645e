"""Settings of the process: memory allocator, garbage collector, limit of open files."""

from __future__ import annotations

import contextlib
import gc

# glibc's mallopt parameters (malloc.h). Bodies of 100 KB and more are allocated and freed with every agent's request;
# by default each is mapped and unmapped, page fault by page fault. From 4 MiB on that is kept: such bodies are rare,
# and their holes between small blocks of the heap would never be given back to the system.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_FILES = 1024 * 1024  # more open files are never needed


def postpone_collection() -> None:
    """No garbage collection until `tune`: what is imported and built at the start stays, and visiting it again and
    again takes a tenth of the time."""
    gc.disable()


def tune() -> None:
    """Tune the process for a long-running server (measured in docs/performance.md), as far as the platform allows."""
    raise_file_limit()
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, 4 * 1024 * 1024)
        mallopt(_TRIM_THRESHOLD, 128 * 1024 * 1024)
        mallopt(_TOP_PAD, 4 * 1024 * 1024)
    # Imported objects stay: the collector need not visit them again. And a request leaves few cycles behind. The few
    # that the start has left (1,100 objects, 0.5 MB) are not worth the time of finding them.
    gc.freeze()
    gc.enable()
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
    """Raise the soft limit, often 1,024 for the sake of old programs, as far as the system allows."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
