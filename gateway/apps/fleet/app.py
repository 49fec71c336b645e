"""The preflight that an operation runs before it starts a backend. The rest of this app is used by commands alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.config.modes import with_profile
from gateway.config.snapshot import Snapshot
from gateway.runtime.apps import Extension, PreflightFindings

if TYPE_CHECKING:
    from gateway.apps.fleet.preflight.run import NodeReport


STOPS_MEND = ("free-memory", "ports", "leftovers", "shared-memory")  # checks that what is still to be stopped may fail


def app(_: object) -> Extension:
    return Extension(preflight=preflight)


def preflight(snapshot: Snapshot, name: str, profile: str, early: bool) -> PreflightFindings:
    """What keeps the nodes of a backend from starting it, or may, with what mends it. They are looked over as for that
    backend alone: the others run, or are stopped. `early`: they are about to be stopped."""
    from gateway.apps.fleet.preflight.expect import expected_nodes
    from gateway.apps.fleet.preflight.run import look_at_all

    backend = snapshot.backends[name]
    if profile:
        backend = with_profile(backend, profile, snapshot.nodes.get(backend.nodes[0]))
    alone = replace(snapshot, backends={name: backend})
    targets = {node: snapshot.nodes[node].ssh for node in backend.nodes}
    looked = look_at_all([(node, targets[node.name]) for node in expected_nodes(alone) if node.name in targets])
    passing = STOPS_MEND if early else ()
    unreached = [
        line
        for one in looked
        if one.problem is not None
        for line in (f"{one.node} ({one.where}) was not reached: {one.problem}", *_mend(one.mend))
    ]
    found = {
        verdict: [line for one in looked for line in _lines(one, verdict, passing)] for verdict in ("fail", "warn")
    }
    return PreflightFindings([*unreached, *found["fail"]], found["warn"])


def _lines(looked: NodeReport, verdict: str, passing: Collection[str]) -> list[str]:
    found = [check for check in looked.checks if check.verdict == verdict and check.check not in passing]
    mark = "warning: " if verdict == "warn" else ""
    return [line for one in found for line in (f"{mark}{looked.node}: {one.check}: {one.seen}", *_mend(one.mend))]


def _mend(command: str | None) -> list[str]:
    return [f"mend: {command}"] if command else []
