"""A request's headers by name. No value of a repeated header is lost."""

from __future__ import annotations

from collections.abc import Collection

Pairs = Collection[tuple[bytes, bytes]]

# Headers that are sent to backends, and are dropped if they have two different values.
_ALONE = frozenset((b"traceparent",))


def header_map(pairs: Pairs) -> dict[bytes, bytes]:
    """Lower-case name -> value. The different values of a repeated header are joined by `, ` (RFC 9110, 5.3), so two
    different keys are not a valid key."""
    found = dict(pairs)
    return found if len(found) == len(pairs) else _joined(pairs)


def _joined(pairs: Pairs) -> dict[bytes, bytes]:
    by_name: dict[bytes, dict[bytes, None]] = {}
    for name, value in pairs:
        by_name.setdefault(name, {})[value] = None
    return {name: b", ".join(values) for name, values in by_name.items() if len(values) == 1 or name not in _ALONE}
