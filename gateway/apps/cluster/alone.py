"""How many slots of a backend a gateway may use while Redis is away: its share, or less if other gateways were last
known to hold more than their shares, until those requests or their leases end."""

from __future__ import annotations

from collections.abc import Sequence

LEASE = 8.0  # seconds after which slots that a gateway was last known to hold do not count any more


def share_of(slots: int, gateways: int) -> int:
    return max(1, slots // gateways)


def slots_alone(slots: int, gateways: int, ours: int, others: Sequence[int]) -> int:
    """`ours`, `others`: slots that this gateway and each other one held when the gateways were last connected;
    gateways that are missing held none. A gateway above its share keeps its slots until its requests end; gateways
    below their share start that many fewer, evenly where possible. So all together stay within `slots` (within the
    number of gateways where there are fewer slots than gateways), even if a gateway did not receive the reports of
    the last releases."""
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
