"""The preflight that an operation runs before it starts a backend. The rest of this app is used by commands alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.config.modes import with_profile
from gateway.config.snapshot import Snapshot
from gateway.runtime.apps import Extension

if TYPE_CHECKING:
    from gateway.apps.fleet.preflight.run import NodeReport


def app(_: object) -> Extension:
    return Extension(preflight=preflight)


def preflight(snapshot: Snapshot, name: str, profile: str) -> list[str]:
    """What keeps the nodes of a backend from starting it, with what mends it. They are looked over as for that backend
    alone: the others run, or are stopped."""
    from gateway.apps.fleet.preflight.expect import expected_nodes
    from gateway.apps.fleet.preflight.run import look_at_all

    backend = snapshot.backends[name]
    if profile:
        backend = with_profile(backend, profile, snapshot.nodes.get(backend.nodes[0]))
    alone = replace(snapshot, backends={name: backend})
    targets = {node: snapshot.nodes[node].ssh for node in backend.nodes}
    looked = look_at_all([(node, targets[node.name]) for node in expected_nodes(alone) if node.name in targets])
    return [line for one in looked for line in _found(one)]


def _found(looked: NodeReport) -> list[str]:
    if looked.problem is not None:
        return [f"{looked.node} ({looked.where}) was not reached: {looked.problem}", *_mend(looked.mend)]
    failed = [check for check in looked.checks if check.verdict == "fail"]
    return [line for check in failed for line in (f"{looked.node}: {check.check}: {check.seen}", *_mend(check.mend))]


def _mend(command: str | None) -> list[str]:
    return [f"mend: {command}"] if command else []
