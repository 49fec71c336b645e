"""How long a backend is left alone after it failed, and how long it must be well before it is used again.

Rules of time alone: each pause is twice the one before, and being well for long lets them be forgotten.
"""

from __future__ import annotations

BACKOFF_LEAST, BACKOFF_MOST = 2.0, 30.0  # seconds until a backend that failed requests is tried by one again
STALL_LEAST, STALL_MOST = 10.0, 600.0  # the same for one whose engine stood still
MISCONFIGURED = 600.0  # seconds until one that refuses our key, and is never probed, is tried by one request again
QUIET_LEAST, QUIET_MOST = 15.0, 600.0  # seconds of good checks from one that has come and gone before
STEADY = 300.0  # seconds of being well after which earlier falls are forgotten


def longer_backoff(backoff: float) -> float:
    """The pause after the next failed trial."""
    return min(BACKOFF_MOST, backoff * 2)


def after_stalls(stalls: int) -> float:
    """The pause of an engine that has stood still so many times."""
    return _doubled(STALL_LEAST, stalls - 1, STALL_MOST)


def quiet_needed(falls: int, every: float | None) -> float:
    """Seconds without a bad check that one must show which has fallen so many times; `every`: seconds between checks.
    The first fall is free."""
    return 0.0 if falls < 2 else _doubled(QUIET_LEAST, falls - 2, QUIET_MOST) * _pace(every)


def is_steady(well_for: float, every: float | None) -> bool:
    """Was it well for so long that what was before does not count any more?"""
    return well_for >= STEADY * _pace(every)


def _doubled(least: float, times: int, most: float) -> float:
    return min(most, least * 2.0 ** min(times, 10))


def _pace(every: float | None) -> float:
    """Where checks come several times a second everything is that much faster."""
    return min(1.0, every or 1.0)
