"""`make loadtest`: every k6 script, against the simulated fleet or your own gateway, and a table."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from loadtests import demo, k6, table
from loadtests.k6 import LoadTestError, Result
from loadtests.scripts import BY_NAME, SCRIPTS, SPARE, Script

SIMULATOR_ONLY = {"failover"}  # breaks backends
ADDED_MEDIAN_MS = "50"  # k6, the gateway and the whole fleet share the machine


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests",
        description="Load tests with k6: a simulated fleet and the gateway are started for it, or your own gateway is "
        "asked (--url; then BASE_URL, MODEL and the other variables of loadtests/README.md say the rest).",
    )
    parser.add_argument("--only", metavar="A,B", help=f"scripts: {', '.join(BY_NAME)}")
    parser.add_argument(
        "--duration",
        default=os.environ.get("LOADTEST_DURATION") or "30s",
        help="of each script, failover twice as long; default $LOADTEST_DURATION, else 30s",
    )
    parser.add_argument("--vus", default=os.environ.get("VUS") or "8", help="clients at a time, default $VUS, else 8")
    parser.add_argument("--speedup", type=float, default=5.0, help="simulated seconds per real second, default 5")
    parser.add_argument("--url", default=None, help="ask this gateway instead of a simulated fleet")
    parser.add_argument("--json", metavar="FILE", help="write every script's metrics there too")
    return parser


def _chosen(only: str | None, own: bool) -> list[Script]:
    names = only.split(",") if only else [s.name for s in SCRIPTS if not (own and s.name in SIMULATOR_ONLY)]
    unknown = sorted(set(names) - set(BY_NAME))
    if unknown:
        raise LoadTestError(f"--only: no script {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    return [script for script in SCRIPTS if script.name in names]


def _simulated(script: Script, fleet: demo.Demo) -> dict[str, str]:
    """A script's variables for the simulated fleet."""
    variables = {"BASE_URL": fleet.url, "CONTROL_URL": fleet.control, **script.environ}
    variables["FIRST_TOKEN_P95_MS"] = str(script.first_token_ms)
    if script.beside:
        variables |= {"DIRECT_URL": fleet.backend(SPARE), "DIRECT_MODEL": SPARE, "ADDED_MEDIAN_MS": ADDED_MEDIAN_MS}
    return variables


def _run(options: argparse.Namespace, console: Console) -> list[Result]:
    scripts = _chosen(options.only, own=options.url is not None)
    length, results = k6.seconds(options.duration), []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loadtest-")))
        fleet = None
        if options.url is None:
            fleet = stack.enter_context(demo.running_demo(folder, options.speedup, k6.FOLDER / "routes.yaml"))
        for script in scripts:
            variables = {name: os.environ[name] for name in k6.known() if fleet is None and os.environ.get(name)}
            variables |= _simulated(script, fleet) if fleet else {"BASE_URL": options.url}
            variables |= {"DURATION": f"{length * script.lasts:g}s", "VUS": options.vus}
            with console.status(f"{script.name}: {script.title} ({length * script.lasts:g} s)"):
                results.append(k6.run(script.name, variables, folder))
            console.print(f"{script.name}: {script.title}: {'ok' if results[-1].passed else 'FAILED'}", highlight=False)
    return results


def write_json(path: str, results: Sequence[Result]) -> None:
    document: Mapping[str, object] = {
        result.script: {
            "passed": result.passed,
            "complaints": table.complaints(result),
            "metrics": {name: metric.get("values", {}) for name, metric in result.metrics.items()},
        }
        for result in results
    }
    Path(path).write_text(json.dumps(document, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 150)
    try:
        results = _run(options, console)
    except LoadTestError as error:
        print(f"loadtests: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nloadtests: interrupted", file=sys.stderr)
        return 130
    console.print()
    console.print(table.table(results))
    for result in results:
        for line in table.complaints(result):
            console.print(escape(line), style="red", highlight=False)
    if options.json:
        write_json(options.json, results)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
