"""What a gateway may use of a backend's slots while Redis is away: its share, and less than that where others were last
seen to hold more than theirs, until that is over or their leases are."""

from __future__ import annotations

from collections.abc import Sequence

LEASE = 8.0  # seconds after which nothing counts any more that a gateway was last known to hold


def share_of(slots: int, gateways: int) -> int:
    return max(1, slots // gateways)


def slots_alone(slots: int, gateways: int, ours: int, others: Sequence[int]) -> int:
    """`ours`, and `others`: slots that this gateway and each of the others held when they were last together; those not
    told held none. Whoever held more than its share keeps that until it ends; by as much those below their share start
    less, each the same where it can. So all together stay within `slots` (with fewer slots than gateways: within as
    many as there are gateways), also where gateways know less of each other's ends than of their beginnings."""
    gateways = max(gateways, len(others) + 1)
    share = share_of(slots, gateways)
    if ours >= share:
        return share
    held = [ours, *others, *[0] * (gateways - 1 - len(others))]
    excess = sum(max(share, one) for one in held) - max(slots, gateways)
    less = 0
    while sum(min(less, max(0, share - one)) for one in held) < excess and less < share:
        less += 1
    return max(ours, share - less)
