"""The log of an engine: the journal of its unit, else the log of its container, over the ssh of its node. Bounded,
without escapes, and with secrets masked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from shlex import quote

from gateway.apps.control.command import kill, problem_of, run
from gateway.apps.control.unit_commands import SSH, Unit, last_path, units_of, with_credentials
from gateway.apps.control.units import without_escapes
from gateway.config.snapshot import Backend, Snapshot
from gateway.errors import GatewayError
from gateway.launch.secrets import MASK, SECRET, masked_keys

LINES_MOST = 2000
LINE_MOST = 2000  # characters
READ_MOST = 20.0  # seconds
ANSWER_MOST = 4 * 1024 * 1024  # bytes
FOLLOW_MOST = 3600  # seconds for which one is followed
LOOK = 1.0  # seconds between two looks whether the gateway stops
SILENCE = 15.0  # seconds without a line after which an empty one is sent: a follower that is gone is noticed

_READ = (
    "w=$(journalctl --no-pager -q -o short-iso -n {lines} -u {unit} 2>/dev/null); "
    'if [ -n "$w" ]; then printf \'%s\\n\' "$w"; '
    "elif docker container inspect {unit} >/dev/null 2>&1; then docker logs --timestamps --tail {lines} {unit} 2>&1; "
    "else tail -n {lines} {last} 2>/dev/null; fi; true"
)
_FOLLOW = (
    'if [ -n "$(journalctl --no-pager -q -n 1 -u {unit} 2>/dev/null)" ]; then '
    "exec timeout --foreground {most} journalctl --no-pager -q -f -o short-iso -n {lines} -u {unit}; "
    "else exec timeout --foreground {most} docker logs -f --timestamps --tail {lines} {unit} 2>&1; fi"
)


def unit_of(snapshot: Snapshot, backend: Backend, node: str = "") -> Unit:
    """The unit whose log is asked for: the head's, or that on `node`. Raises `not_found`."""
    units = units_of(backend, snapshot.nodes)
    if not units:
        why = "it has no rendered unit (a launch block, and `ssh` under its nodes)"
        raise GatewayError("not_found", f"The log of {backend.name} cannot be read from here: {why}.")
    found = next((unit for unit in units if node in ("", unit.node)), None)
    if found is None:
        there = ", ".join(unit.node for unit in units)
        raise GatewayError("not_found", f"{backend.name} does not run on '{node}'. Nodes: {there}.", param="node")
    return found


async def read_log(unit: Unit, backend: Backend, lines: int) -> list[str]:
    """The last lines. Raises `upstream_error` where the node is not reached."""
    ended = await run(_argv(unit, _READ, lines), READ_MOST, ANSWER_MOST)
    if ended.problem:
        known = problem_of(unit.target, ended.output)
        why = f"{known.why}; mend: {known.mend}" if known is not None else f"{ended.output or ended.problem}"
        raise GatewayError("upstream_error", f"The log of {unit.name} on {unit.node} was not read: {why}")
    hide = _secrets_of(backend)
    return [shown(line, hide) for line in ended.output.splitlines()[-lines:]]


async def follow_log(unit: Unit, backend: Backend, lines: int, is_over: Callable[[], bool]) -> AsyncGenerator[str]:
    """The last lines, then each as it comes, until `is_over`; an empty text where nothing comes."""
    process = None
    try:
        process = await asyncio.create_subprocess_exec(
            *_argv(unit, _FOLLOW, lines),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            limit=64 * 1024,
        )
        assert process.stdout is not None
        hide = _secrets_of(backend)
        silent_since = time.monotonic()
        while not is_over():
            try:
                async with asyncio.timeout(LOOK):
                    line = await process.stdout.readline()
            except TimeoutError:
                if time.monotonic() - silent_since >= SILENCE:
                    silent_since = time.monotonic()
                    yield ""
                continue
            except ValueError:  # a line beyond the limit, which is dropped
                continue
            if not line:
                return
            yield shown(line.decode(errors="replace"), hide)
    finally:
        if process is not None and process.returncode is None:
            await kill(process)


def shown(line: str, hide: frozenset[str] = frozenset()) -> str:
    """A line of an engine as people may see it."""
    text = without_escapes(line)[:LINE_MOST]
    for secret in hide:
        text = text.replace(secret, MASK)
    return masked_keys(text)


def _secrets_of(backend: Backend) -> frozenset[str]:
    """Values that are written out in the launch block under a name that speaks of a secret."""
    env = backend.launch.variables if backend.launch is not None else {}
    return frozenset(
        value for name, value in env.items() if SECRET.search(name) and len(value) > 3 and "${" not in value
    )


def _argv(unit: Unit, line: str, lines: int) -> tuple[str, ...]:
    values = {
        "{unit}": quote(unit.name),
        "{lines}": str(lines),
        "{last}": quote(last_path(unit.name)),
        "{most}": str(FOLLOW_MOST),
    }
    for key, value in values.items():
        line = line.replace(key, value)
    return with_credentials((*SSH, unit.target, line))
