"""The header fields of the answers on one connection, as its parser reads them."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.domain.upstream import ProtocolFailure

MAX_HEAD = 64 * 1024  # bytes of a head
NAMES = 64  # names remembered per connection: a backend uses the same few again and again


class HeadFields:
    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}  # as the backend writes it -> in lower case

    def read(self, head: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
        """The fields by their names in lower case; of repeated ones, the last. Raises `ProtocolFailure` for a head of
        more than `MAX_HEAD` bytes."""
        names = self._names
        fields: dict[str, str] = {}
        size = 0
        for raw, value in head:
            size += len(raw) + len(value) + 4
            name = names.get(raw)
            if name is None:
                name = raw.lower().decode("latin-1")
                if len(names) < NAMES:
                    names[raw] = name
            fields[name] = value.decode("latin-1").rstrip(" \t")
        if size > MAX_HEAD:
            raise head_too_large()
        return fields


def head_too_large() -> ProtocolFailure:
    return ProtocolFailure(f"the head of the answer, or what follows its body, is larger than {MAX_HEAD} bytes")
