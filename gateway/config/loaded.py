"""What reading routes.yaml gives (load.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.config.problems import Digests, Path, Problem
from gateway.config.snapshot import Snapshot


@dataclass(frozen=True)
class Loaded:
    """A valid file: its snapshot and the warnings. `sources` are the digests of the files that were read: the file
    itself, the env file (also one that does not exist yet) and those of `${file:...}`. `lines`: path of a key or a
    list member -> its line."""

    snapshot: Snapshot
    warnings: list[Problem]
    sources: Digests = field(default_factory=dict)
    lines: Mapping[Path, int] = field(default_factory=dict)
