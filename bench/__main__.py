"""`make bench`: the gateway beside nginx, the routers written in Rust and the bare upstream."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from bench import processes, profiling, report, routers, runner, targets
from bench.processes import BenchError
from bench.runner import Plan
from bench.scenarios import NAMES, TRACED
from bench.targets import Target

BUILT_IN = ("direct", "nginx", "gateway", *routers.BY_NAME)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="What the gateway costs: CPU per request and chunk, memory, added latency, beside nginx (when "
        "it is installed), routers written in Rust (installed into .venv-routers, or taken from the environment that "
        "ROUTERS names) and the bare upstream. Takes about ten minutes; --quick a minute.",
    )
    parser.add_argument("--only", metavar="A,B", help=f"scenarios: {', '.join(NAMES)}")
    parser.add_argument("--targets", metavar="A,B", default=",".join(BUILT_IN), help=f"which of {', '.join(BUILT_IN)}")
    parser.add_argument(
        "--target",
        metavar="NAME=URL[@MODEL]",
        action="append",
        default=[],
        help="another proxy on this machine, already running in front of --mock-port; may be repeated",
    )
    parser.add_argument("--mock-port", type=int, default=0, help="where the mock upstream listens (default: any)")
    parser.add_argument("--repeats", type=int, default=None, help="default 3")
    parser.add_argument("--seconds", type=float, default=None, help="length of a measured window, default 3")
    parser.add_argument("--quick", action="store_true", help="one repeat, short windows: does it work, about how fast")
    parser.add_argument("--json", metavar="FILE", help="write all values there too")
    parser.add_argument(
        "--profile", metavar="SCENARIO", nargs="?", const="small", choices=NAMES, help="profile the gateway instead"
    )
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    names = options.only.split(",") if options.only else list(NAMES)
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise BenchError(f"--only: no scenario {', '.join(unknown)}; there are {', '.join(NAMES)}")
    scenarios = [name for name in NAMES if name in names]
    if options.quick:
        if not options.only:
            scenarios.remove("alone")  # says least about the gateway
        return Plan(scenarios, options.repeats or 1, options.seconds or 0.5, warm=0.2, connections_open=100)
    return Plan(scenarios, options.repeats or 3, options.seconds or 3.0)


def _targets(options: argparse.Namespace, plan: Plan, folder: Path, ports: Sequence[int]) -> list[Target]:
    wanted = [name for name in options.targets.split(",") if name]
    unknown = sorted(set(wanted) - set(BUILT_IN))
    if unknown:
        raise BenchError(
            f"--targets: no {', '.join(unknown)}; there are {', '.join(BUILT_IN)}. Others: --target NAME=URL"
        )
    found = [targets.direct(ports[0])] if "direct" in wanted else []
    nginx = targets.nginx_target(folder / "nginx", ports) if "nginx" in wanted else None
    found += [nginx] if nginx else []
    if "gateway" in wanted:
        found.append(targets.gateway_target(folder / "gateway", ports))
        if TRACED in plan.scenarios:
            found.append(targets.gateway_target(folder / TRACED, ports, traced=True))
    found += _routers([name for name in wanted if name in routers.BY_NAME], folder, ports)
    return found + [targets.other_target(text) for text in options.target]


def _routers(names: Sequence[str], folder: Path, ports: Sequence[int]) -> list[Target]:
    """Those that can be measured here; the others are left out, and the reason is printed."""
    found = []
    for name in names:
        try:
            found.append(targets.router_target(routers.BY_NAME[name], folder / name, ports))
        except routers.NotInstallable as error:
            print(f"bench: {name} is left out: {error}", file=sys.stderr)
    return found


def _interrupted(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def bench(options: argparse.Namespace) -> int:
    """Run and print; 1 when an answer was wrong."""
    plan = _plan(options)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        if options.profile:
            print(profiling.profile(options.profile, plan, folder))
            return 0
        ports = stack.enter_context(runner.upstream(processes.cores()[1], (options.mock_port, 0)))
        chosen = _targets(options, plan, folder, ports)
        table = runner.run(chosen, plan)
    names = list(dict.fromkeys(target.name for target in chosen))
    print(report.render(table, names, plan))
    if options.json:
        report.write_json(options.json, table, names, plan)
    return 1 if report.failures(table) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if not sys.platform.startswith("linux"):
        print("bench: Linux is needed, CPU times are read from /proc", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _interrupted)
    processes.raise_file_limit()
    try:
        return bench(options)
    except BenchError as error:
        print(f"\nbench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nbench: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
