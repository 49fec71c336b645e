"""Looks nodes over from here: the node's modules go to a `python3 -`, on this machine or there over ssh."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from gateway.apps.control.command import problem_of
from gateway.apps.control.unit_commands import SSH, with_credentials
from gateway.apps.fleet.preflight.checks_memory import UPDATE as DRIVER_UPDATE
from gateway.apps.fleet.preflight.host import CommandResult, ExpectedNode, HostCheck, fetch_bounded, run_bounded
from gateway.apps.fleet.preflight.node import MARK, PATIENCE
from gateway.printable import visible

MODULES = ("host", "checks_memory", "checks_start", "checks_system", "checks_weights", "node")
_CONNECT = 10  # seconds that ssh may take to connect
_MOST_ANSWER = 4 * 1024 * 1024
_MOST_NODES = 8  # at a time
_VERDICTS = ("ok", "warn", "fail", "unknown")
# Makes the package of its sources; `-I -S` on the node: nothing but the standard library is there to import.
_BOOTSTRAP = """\
import json, sys, types
def load(name, text):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    exec(compile(text, name, "exec"), module.__dict__)
    above, _, last = name.rpartition(".")
    if above:
        setattr(sys.modules[above], last, module)
for name, text in json.loads(SOURCES):
    load(name, text)
sys.modules[MAIN].main(EXPECTED)
"""

Send = Callable[[Sequence[str], str, float], CommandResult]  # argument vector, input, seconds


@dataclass(frozen=True)
class NodeReport:
    """The checks of one node. `where`: `here` or `ssh TARGET`. `problem`: why the node could not be examined."""

    node: str
    where: str
    checks: tuple[HostCheck, ...] = ()
    problem: str | None = None
    mend: str | None = None

    @property
    def failed(self) -> bool:
        return self.problem is not None or any(check.verdict == "fail" for check in self.checks)


def script(expected: ExpectedNode) -> str:
    """The program that the node's Python gets as its input."""
    return program([f"preflight.{name}" for name in MODULES], json.dumps(asdict(expected)))


def program(modules: Sequence[str], argument: str) -> str:
    """The program that runs `main(argument)` of the last of these modules of the fleet, with those before it at
    hand."""
    above = "gateway.apps.fleet"
    packages = dict.fromkeys(f"{above}.{name.partition('.')[0]}" for name in modules)
    sources = [(name, "") for name in ("gateway", "gateway.apps", above, *packages)]
    folder = Path(__file__).parents[1]
    sources += [(f"{above}.{name}", (folder / f"{name.replace('.', '/')}.py").read_text("utf-8")) for name in modules]
    values = {"SOURCES": json.dumps(sources), "MAIN": f"{above}.{modules[-1]}", "EXPECTED": argument}
    return "".join(f"{name} = {value!r}\n" for name, value in values.items()) + _BOOTSTRAP


def ssh_command(target: str) -> list[str]:
    """The argument vector for a node."""
    return list(with_credentials((*SSH, target, "python3", "-I", "-S", "-")))


def send(argv: Sequence[str], text: str, timeout: float) -> CommandResult:
    return run_bounded(argv, timeout, text, _MOST_ANSWER)


def look(expected: ExpectedNode, target: str | None, send: Send = send) -> NodeReport:
    """Look a node over by ssh to `target`; None: this machine. Never raises, and ends within a minute."""
    argv = [sys.executable, "-I", "-S", "-"] if target is None else ssh_command(target)
    where = "here" if target is None else f"ssh {target}"
    ran = send(argv, script(expected), PATIENCE + 2 * _CONNECT)
    lines = [line for line in ran.out.splitlines() if line.startswith(MARK)]
    try:
        checks = tuple(_check(one) for one in json.loads(lines[-1].removeprefix(MARK))["checks"]) if lines else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        checks = None
    if checks is not None:
        return NodeReport(expected.name, where, checks)
    known = problem_of(target, ran.error) if target is not None else None
    if known is not None:
        return NodeReport(expected.name, where, problem=known.why, mend=known.mend)
    return NodeReport(expected.name, where, problem=visible(ran.why), mend=_mend_of(target, ran))


def _check(data: dict[str, Any]) -> HostCheck:
    """A check as the node wrote it. Raises KeyError, TypeError or ValueError for anything else."""
    texts = {key: data.get(key) for key in ("mend", "backend", "fact")}
    if data["verdict"] not in _VERDICTS or not all(text is None or isinstance(text, str) for text in texts.values()):
        raise ValueError("not a check")
    shown = {key: None if text is None else visible(text) for key, text in texts.items()}
    return HostCheck(visible(str(data["check"])), data["verdict"], visible(str(data["seen"])), **shown)


def _mend_of(target: str | None, ran: CommandResult) -> str | None:
    if target is None:
        return None
    stated = ran.error.lower()
    if "permission denied" in stated:
        return f"ssh-copy-id {target}"
    if "python3" in stated and "not found" in stated:
        return f"ssh {target} sudo apt-get install python3"
    return f"ssh -v -o BatchMode=yes {target} true"


def look_at_all(nodes: Sequence[tuple[ExpectedNode, str | None]], send: Send = send) -> list[NodeReport]:
    """All nodes, several at a time, in this order; then those of one engine are compared."""
    with ThreadPoolExecutor(max_workers=_MOST_NODES) as pool:
        looked = list(pool.map(lambda one: _with_exporter(look(one[0], one[1], send), *one), nodes))
    spanning = {backend.name for expected, _ in nodes for backend in expected.backends if backend.nodes > 1}
    return [_compared(one, looked, [expected for expected, _ in nodes], spanning) for one in looked]


def _compared(
    looked: NodeReport, others: Sequence[NodeReport], expected: Sequence[ExpectedNode], spanning: set[str]
) -> NodeReport:
    """With a warning where the driver or the image of an engine differs from that on its head."""
    found = []
    for name in sorted(spanning):
        runs = [node for node in expected if any(backend.name == name for backend in node.backends)]
        head = next((n.name for n in runs for backend in n.backends if backend.name == name and not backend.worker), "")
        first = next((one for one in others if one.node == head), None)
        if first is None or looked.node == head or looked.node not in [node.name for node in runs]:
            continue
        for check, mend in (
            ("driver", DRIVER_UPDATE),
            ("image", "docker pull IMAGE   # on both, or docker save | docker load"),
        ):
            here, there = _fact(looked, check, name), _fact(first, check, name)
            if here and there and here != there:
                seen = f"{check} {here[:19]} here and {there[:19]} on {head}, and the engine spans both"
                found.append(HostCheck(check, "warn", seen, mend, name))
    return replace(looked, checks=(*looked.checks, *found))


def _fact(looked: NodeReport, check: str, backend: str) -> str | None:
    facts = (c.fact for c in looked.checks if c.check == check and c.backend in (None, backend))
    return next((fact for fact in facts if fact), None)


def _with_exporter(looked: NodeReport, expected: ExpectedNode, target: str | None) -> NodeReport:
    """The node reaches its exporter and the gateway's machine does not: a firewall, or an address of the node alone."""
    checks = looked.checks
    answers = any(c.check == "exporter" and c.verdict == "ok" for c in checks)
    if target is None or not answers or expected.exporter is None or fetch_bounded(expected.exporter) is not None:
        return looked
    mend = f"sudo ufw status; curl -sS {quote(expected.exporter)} | head -3   # the first there, the second here"
    seen = f"{expected.exporter} answers on the node and not from here"
    kept = tuple(c for c in checks if c.check != "exporter")
    return NodeReport(looked.node, looked.where, (*kept, HostCheck("exporter", "warn", seen, mend)))
