"""Where the gateway's time goes in one scenario.

`python -m bench.profiling OUT serve ...` is the gateway under cProfile: SIGUSR1 starts the profile, SIGUSR2 ends it and
writes OUT, so that imports and start-up are not in it.
"""

from __future__ import annotations

import cProfile
import io
import os
import pstats
import signal
import sys
import time
from pathlib import Path

from bench import processes, targets
from bench.processes import BenchError
from bench.runner import Plan, measure_once, upstream
from bench.scenarios import BY_NAME, TRACED

TOP = 25


def profile(name: str, plan: Plan, folder: Path) -> str:
    """Run one scenario with the gateway under cProfile; its top functions by own time, as text.

    cProfile makes every Python call dearer, so shares are to be compared, not times.
    """
    proxy_core, load_core = processes.cores()
    out = folder / "gateway.prof"
    with upstream(load_core) as ports:
        runner = ("-m", "bench.profiling", str(out))
        target = targets.gateway_target(folder / "profiled", ports, runner, traced=name == TRACED)
        try:
            target.start(proxy_core)
            os.kill(target.pids[0], signal.SIGUSR1)
            result = measure_once(target, BY_NAME[name], plan, load_core)
            os.kill(target.pids[0], signal.SIGUSR2)
            _wait_for(out)
        finally:
            target.stop()
    if result.errors:
        raise BenchError(f"{name} went wrong under the profiler: {result.errors}")
    text = io.StringIO()
    pstats.Stats(str(out), stream=text).strip_dirs().sort_stats("tottime").print_stats(TOP)
    return f"{BY_NAME[name].title}, gateway under cProfile, own time:\n{text.getvalue()}"


def _wait_for(out: Path) -> None:
    """The profile is written by a signal handler: give it a moment, and a size that stands still."""
    size = -1
    for _ in range(100):
        time.sleep(0.1)
        if out.exists() and out.stat().st_size == size > 0:
            return
        size = out.stat().st_size if out.exists() else -1
    raise BenchError("the gateway wrote no profile; does it replace its own process at the start?")


def main() -> None:
    """The gateway, profiled; the other arguments are the command's own."""
    from gateway.cli.main import cli

    out = sys.argv.pop(1)
    profile = cProfile.Profile()

    def finish(_number: int, _frame: object) -> None:
        profile.disable()
        profile.dump_stats(out)

    signal.signal(signal.SIGUSR1, lambda _number, _frame: profile.enable())
    signal.signal(signal.SIGUSR2, finish)
    cli()


if __name__ == "__main__":
    main()
