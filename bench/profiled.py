"""Runs the gateway under cProfile: `python -m bench.profiled OUT serve ...`.

SIGUSR1 starts the profile, SIGUSR2 ends it and writes OUT, so that imports and start-up are not in it.
"""

from __future__ import annotations

import cProfile
import signal
import sys

from gateway.cli.main import cli


def main() -> None:
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
