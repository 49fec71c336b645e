"""A request's headers by name, where no header that was sent twice hides what the other one said."""

from __future__ import annotations

from collections.abc import Collection

Pairs = Collection[tuple[bytes, bytes]]

# Headers that mean nothing when two values of them differ, and that go up to backends.
_ALONE = frozenset((b"traceparent",))


def header_map(pairs: Pairs) -> dict[bytes, bytes]:
    """Lower-case name -> value. The different values of a repeated header are joined by `, ` (RFC 9110, 5.3): two keys
    are no key, and of two answers to a question none is lost."""
    found = dict(pairs)
    return found if len(found) == len(pairs) else _joined(pairs)


def _joined(pairs: Pairs) -> dict[bytes, bytes]:
    values: dict[bytes, dict[bytes, None]] = {}
    for name, value in pairs:
        values.setdefault(name, {})[value] = None
    return {name: b", ".join(said) for name, said in values.items() if len(said) == 1 or name not in _ALONE}
