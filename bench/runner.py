"""One run: upstream up, targets up, every scenario on every target in alternating order, and all of it down again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field

from bench import processes
from bench.load import PATIENCE, Job, Result
from bench.processes import BenchError
from bench.scenarios import BY_NAME, Scenario
from bench.targets import Target
from gateway.apps.bench import stats


@dataclass(frozen=True)
class Plan:
    """What to run and for how long; seconds per window."""

    scenarios: Sequence[str]
    repeats: int = 3
    seconds: float = 3.0
    warm: float = 0.5
    connections_open: int = 500

    def window(self, scenario: Scenario) -> float:
        """Latencies need more samples, an open stream only has to stay open."""
        return {"rate": 1.5, "hold": 0.5}.get(scenario.mode, 1.0) * self.seconds


@dataclass
class Samples:
    """One figure of one target: a value per repeat in which all was right, and what went wrong in the others."""

    values: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def median(self) -> float | None:
        found = stats.spread(self.values)
        return found.median if found is not None else None

    @property
    def noise(self) -> float:
        """(largest - smallest) / median over the repeats."""
        found = stats.spread(self.values)
        return found.relative if found is not None else 0.0


Table = dict[str, dict[str, Samples]]  # figure -> target -> samples


@contextmanager
def upstream(core: int, ports: Sequence[int] = (0, 0)) -> Iterator[list[int]]:
    """The mock, listening; yields its ports."""
    flags = [word for port in ports for word in ("--port", str(port))]
    process = processes.spawn(
        [sys.executable, "-m", "bench.mock", *flags], core, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if words[:1] != [b"ready"]:
            raise BenchError(f"the mock upstream did not start on ports {list(ports)}; are they free?")
        yield [int(word) for word in words[1:]]
    finally:
        processes.stop(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def measure_once(target: Target, scenario: Scenario, plan: Plan, core: int) -> Result:
    """One window of load. Raises BenchError when the load itself fails."""
    seconds = plan.window(scenario)
    connections = plan.connections_open if scenario.mode == "hold" else 0
    job = Job(scenario.name, target.host, target.port, target.model, seconds, plan.warm, target.pids, connections)
    load = processes.spawn([sys.executable, "-m", "bench.load"], core, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        limit = 2 * (seconds + plan.warm + PATIENCE)
        answer, _ = load.communicate(json.dumps(asdict(job)).encode(), timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"the load did not end within {limit:.0f} s ({scenario.name} on {target.name})") from error
    finally:
        processes.stop(load)
    if load.returncode != 0:
        raise BenchError(f"the load failed ({scenario.name} on {target.name})")
    return Result(**json.loads(answer))


def run(targets: Sequence[Target], plan: Plan) -> Table:
    """All repeats. Targets are started anew in each; their order is reversed every time."""
    table: Table = {}
    proxy_core, load_core = processes.cores()
    for repeat in range(plan.repeats):
        order = stats.alternated(targets, repeat)
        with ExitStack() as running:
            for target in order:
                running.callback(target.stop)
                target.start(proxy_core)
                if target.scenarios is None or "open" in target.scenarios:
                    _start_figures(table, target)
            for name in plan.scenarios:
                _scenario(table, order, BY_NAME[name], plan, load_core, f"{repeat + 1}/{plan.repeats}")
    progress("")
    return table


def progress(text: str) -> None:
    """One line that overwrites itself on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _samples(table: Table, figure: str, target: Target) -> Samples:
    return table.setdefault(figure, {}).setdefault(target.name, Samples())


def _start_figures(table: Table, target: Target) -> None:
    if target.process is not None:
        _samples(table, "start", target).values.append(target.start_ms)
    if target.pids:
        _samples(table, "idle", target).values.append(target.idle_rss / 1e6)


def _scenario(table: Table, order: list[Target], scenario: Scenario, plan: Plan, core: int, repeat: str) -> None:
    latencies = {}
    for target in order:
        if target.scenarios is not None and scenario.name not in target.scenarios:
            continue
        progress(f"repeat {repeat}: {scenario.title} on {target.name}")
        result = measure_once(target, scenario, plan, core)
        samples = _samples(table, scenario.name, target)
        for error, count in result.errors.items():
            samples.errors[error] = samples.errors.get(error, 0) + count
        if result.errors:
            continue
        if scenario.mode == "rate":
            if result.latencies:
                latencies[target.name] = [stats.quantile(result.latencies, share) for share in (0.5, 0.95)]
        elif scenario.mode == "hold":
            samples.values += [result.rss / 1e6] if target.pids else []
        else:
            units = result.events if scenario.per == "chunk" else result.requests
            if target.pids and units:
                samples.values.append(result.cpu_ns / 1000 / units)
            _samples(table, f"{scenario.name}:rate", target).values.append(units / result.seconds)
    _add_latencies(table, order, latencies)


def _add_latencies(table: Table, order: list[Target], latencies: dict[str, list[float]]) -> None:
    """The latencies (p50, p95) of one repeat, and what each target adds to the direct ones; ms."""
    for target in order:
        if target.name in latencies and "direct" in latencies:
            for part, own, direct in zip(("p50", "p95"), latencies[target.name], latencies["direct"], strict=True):
                _samples(table, f"added:{part}", target).values.append(own - direct)
                _samples(table, f"latency:{part}", target).values.append(own)
