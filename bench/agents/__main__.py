"""`make bench-agents`: 48 agents of 12 turns before 2 and 4 simulated replicas, in simulated time."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

from bench.agents.measure import Figures, one_run
from bench.agents.scenarios import AGENTS, SCENARIOS, TURNS
from bench.virtual_time import GRACE, run

ROWS = {"ours": "the gateway", "hash": "consistent hash of ids", "turns": "round robin"}
ROUTER = {"router": "vllm-router, cache_aware"}  # where ROUTERS names an environment that has it
IN_A_ROUTER = 0.005  # real seconds that a request may be in another process, while no time passes


def _figures(found: Figures) -> dict[str, float]:
    return {
        "wall": found.wall,
        "p50": found.quantile(0.5),
        "p95": found.quantile(0.95),
        "computed": found.computed / 1e6,
        "found": 1 - found.computed / max(1, found.asked),
        "moved": found.moved,
        "broken": found.broken,
        "turns": len(found.first),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.agents", description=__doc__)
    parser.add_argument("--only", default=",".join(SCENARIOS), help="scenarios")
    parser.add_argument("--rows", default=",".join([*ROWS, *(ROUTER if "ROUTERS" in os.environ else ())]))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--agents", type=int, default=AGENTS)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    kept: dict[str, Any] = {}
    print("| scenario | row | wall s | first token p50/p95 ms | prefix found | computed M | moved |")
    print("|--|--|--:|--|--:|--:|--:|")
    for name in options.only.split(","):
        for row in options.rows.split(","):
            if row in ROUTER and SCENARIOS[name].dies:
                continue  # it waits for a dead replica in real time
            grace = IN_A_ROUTER if row in ROUTER else GRACE
            runs = [
                _figures(run(one_run(SCENARIOS[name], row, seed, options.agents, options.turns), grace))
                for seed in range(options.repeats)
            ]
            middle = {key: median(one[key] for one in runs) for key in runs[0]}
            kept[f"{name} {row}"] = middle
            moved = "–" if row in ROUTER else f"{middle['moved']:.0f}"  # a router does not say who answered
            first = f"{middle['p50'] * 1e3:.0f} / {middle['p95'] * 1e3:.0f}"
            print(
                f"| {name} | {({**ROWS, **ROUTER})[row]} | {middle['wall']:.1f} | {first} | {middle['found']:.3f} |"
                f" {middle['computed']:.2f} | {moved} of {middle['turns']:.0f} |"
            )
            sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
