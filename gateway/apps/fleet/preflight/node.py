"""Looks a node over: every check at once, each for a bounded time.

Runs on the node: standard library only. `main` is what `python3 -` runs there.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace

from gateway.apps.fleet.preflight import (
    checks_memory,
    checks_start,
    checks_system,
    checks_weights,
)
from gateway.apps.fleet.preflight.host import ExpectedNode, Host, HostCheck, expected_node

Examine = Callable[[ExpectedNode, Host], Iterator[HostCheck]]

# In the order in which they are shown: what needs a reboot first.
CHECKS: Mapping[str, Examine] = {
    "zombies": checks_memory.zombies,
    "driver": checks_memory.driver,
    "clocks": checks_memory.clocks,
    "visible-memory": checks_memory.visible_memory,
    "free-memory": checks_memory.page_cache,
    "leftovers": checks_start.leftovers,
    "shared-memory": checks_memory.shared_memory,
    "ports": checks_start.ports,
    "image": checks_start.images,
    "weights": checks_weights.weights,
    "units": checks_start.units,
    "sudo": checks_start.sudo,
    "environment": checks_system.environment,
    "network": checks_system.network,
    "clock": checks_system.clock,
    "exporter": checks_system.exporter,
}
PATIENCE = 30.0  # seconds for all checks together
MARK = "spark-gateway-preflight: "  # begins the line of the answer: a login may print lines of its own
_MOST = 500  # results of one check


def examine(expected: ExpectedNode, host: Host, patience: float = PATIENCE) -> list[HostCheck]:
    """The results of all checks. A check that fails itself, or has not ended in time, is `unknown`. Never raises."""
    results: dict[str, list[HostCheck]] = {}
    threads = [
        threading.Thread(target=_run, args=(name, check, expected, host, results), daemon=True)
        for name, check in CHECKS.items()
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + patience
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    late = f"has not ended after {patience:g} s"
    return [check for name in CHECKS for check in results.get(name) or [HostCheck(name, "unknown", late)]]


def _run(name: str, check: Examine, expected: ExpectedNode, host: Host, results: dict[str, list[HostCheck]]) -> None:
    found: list[HostCheck] = []
    try:
        for result, _ in zip(check(expected, host), range(_MOST), strict=False):
            found.append(replace(result, check=name))
    except Exception as error:
        found.append(HostCheck(name, "unknown", f"the check itself failed: {type(error).__name__}: {error}"[:300]))
    results[name] = found or [HostCheck(name, "ok", "nothing to look at")]


def main(expected: str) -> None:
    """Print one line of JSON: `{"checks": [...]}`. `expected`: an ExpectedNode as JSON. Ends the process, because a
    check that hangs in a driver would keep it."""
    checks = examine(expected_node(json.loads(expected)), Host())
    sys.stdout.write(MARK + json.dumps({"checks": [asdict(check) for check in checks]}) + "\n")
    sys.stdout.flush()
    os._exit(0)
