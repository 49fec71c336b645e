"""How the rendered units of the nodes are: asked of systemd and docker over ssh, never concluded from what was ordered.

One question to a node answers for all of its units. It needs no root. The last words of an engine are in the journal
(for users of the group systemd-journal), in the file that the launch script leaves, or in the container's log.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Literal

from gateway.apps.control.command import CommandOutcome, run, was_cut
from gateway.apps.control.unit_commands import PROFILES, SSH, Command, Unit, park_commands, with_credentials
from gateway.config.snapshot import Snapshot
from gateway.printable import visible

LOOK_MOST = 15.0  # seconds for one question
WORDS_ASKED = 40  # lines of the journal that are looked through for the last words
WORDS_SHOWN = 8  # lines
_ANSWER_MOST = 64 * 1024  # bytes of one answer
_LINE_MOST = 400  # characters of one of them

_SHOW = (
    "LC_ALL=C systemctl show --no-pager "
    "--property=Id,LoadState,ActiveState,SubState,Result,ExecMainStatus,NRestarts,Job -- {units}; echo; "
    "docker ps --format 'container={{.Names}}' 2>/dev/null; "
)
_WORDS = (
    "echo; echo words:; w=$(journalctl --no-pager -q -o cat -n {lines} -u {unit} 2>/dev/null); "
    '[ -n "$w" ] || w=$(tail -n {lines} {folder}/{unit}.last 2>/dev/null); '
    '[ -n "$w" ] || ! docker container inspect {unit} >/dev/null 2>&1 || '
    "w=$(docker logs --tail {lines} {unit} 2>&1); "
    "printf '%s' \"$w\" | tail -c 3000; "
)

RUNS = ("active", "activating", "reloading", "deactivating", "refreshing")
Activity = Literal["runs", "partly", "stopped"]
"""Of a backend: all of its units are up or on their way, some are, none is."""


@dataclass(frozen=True, slots=True)
class UnitState:
    """A unit as systemd shows it. `active`, `sub`, `result`: its words. `status`: the exit code of its last process.
    `restarts`: how often systemd has started it again by itself. `queued`: a job of it waits or runs. `container`: one
    of its name runs. `words`: what the engine wrote last, if it was asked for."""

    unit: Unit
    active: str
    sub: str = ""
    result: str = ""
    status: str = ""
    restarts: int = 0
    queued: bool = False
    installed: bool = True
    container: bool = False
    words: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """Is it up or on its way? Also without its unit, where somebody has started the container."""
        return self.active in RUNS or self.queued or self.container

    @property
    def ended(self) -> str:
        """Why it is down for good; empty where it is not. Between two attempts systemd calls a unit `activating`."""
        if self.active == "failed":
            return f"the unit has failed ({self.how}), and systemd starts it no more"
        if self.active != "inactive" or self.queued:
            return ""
        if self.result == "exec-condition":
            return "the unit was skipped: its node boots, and the mode in force leaves it out"
        return f"the unit is inactive on {self.unit.node}: somebody has stopped it, or the node was started anew"

    @property
    def how(self) -> str:
        """How its process ended."""
        killed = {"137": ", killed: often for want of memory", "9": ", killed: often for want of memory"}
        if self.status == "0" and self.result == "signal":
            return "it was stopped, or killed by a signal, while it started"
        if self.status == "0" and self.result not in ("", "success"):  # what the launch script does before the engine
            return f"it was not run: {self.result}"
        code = f"exit code {self.status or 'unknown'}{killed.get(self.status, '')}"
        return f"{code}, {self.result}" if self.result in ("oom-kill", "timeout", "start-limit-hit") else code

    @property
    def shown(self) -> str:
        return f"{self.unit.node}: {self.active} ({self.sub})" if self.sub else f"{self.unit.node}: {self.active}"


async def look(units: Iterable[Unit], *, words: int = 0, most: float = LOOK_MOST) -> dict[Unit, UnitState | None]:
    """Each of these units as it is now; None: its node was not reached, or does not tell. `words`: lines of its last
    words to ask for. Nodes are asked side by side. Never raises."""
    by_target: dict[str, list[Unit]] = {}
    for unit in units:
        by_target.setdefault(unit.target, []).append(unit)
    found = await asyncio.gather(*(_look(target, there, words, most) for target, there in by_target.items()))
    return {unit: one.get(unit) for one in found for unit in one}


async def tell_nodes(snapshot: Snapshot, mode: str, seconds: float) -> list[str]:
    """Write on every node which units the mode leaves out, so that they do not load when it boots. Where that failed, a
    line for people: it is no reason for the mode not to be in force."""
    commands = park_commands(snapshot, mode) if mode in snapshot.modes else ()
    ended = await asyncio.gather(*(run(with_credentials(one.argv), seconds) for one in commands))
    failed = [(command.shown, one.problem) for command, one in zip(commands, ended, strict=True) if one.problem]
    return [f"{shown}: {problem}; a boot there loads as it did before" for shown, problem in failed]


async def _look(target: str, units: list[Unit], words: int, most: float) -> dict[Unit, UnitState | None]:
    line = _SHOW.replace("{units}", " ".join(quote(unit.name) for unit in units))
    if words:
        line += (
            _WORDS.replace("{unit}", quote(units[0].name)).replace("{lines}", str(words)).replace("{folder}", PROFILES)
        )
    ended = await run(with_credentials((*SSH, target, f"{line}true")), most, _ANSWER_MOST)
    return dict.fromkeys(units) if ended.problem else read_units(ended.output, units)


def read_units(output: str, units: Iterable[Unit]) -> dict[Unit, UnitState | None]:
    """The answer of one node."""
    shown, _, said = output.partition("\nwords:\n")
    containers = {line.removeprefix("container=") for line in shown.splitlines() if line.startswith("container=")}
    blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in re.split(r"\n\s*\n", shown)]
    units = list(units)
    alone = units[0].name if len(units) == 1 else ""
    by_id = {block.get("Id", alone).removesuffix(".service"): block for block in blocks if "ActiveState" in block}
    return {
        unit: _state(unit, by_id[unit.name], unit.name in containers, said) if unit.name in by_id else None
        for unit in units
    }


def _state(unit: Unit, block: Mapping[str, str], container: bool, said: str) -> UnitState:
    restarts = block.get("NRestarts", "")
    return UnitState(
        unit,
        block.get("ActiveState", "unknown"),
        block.get("SubState", ""),
        block.get("Result", ""),
        block.get("ExecMainStatus", ""),
        int(restarts) if restarts.isdecimal() else 0,
        block.get("Job", "0") not in ("", "0"),
        block.get("LoadState") != "not-found",
        container,
        last_words(said, unit.name),
    )


def activity(states: Iterable[UnitState | None]) -> Activity | None:
    """Of one backend, by all of its units; None: no node tells. A node that does not tell is like the others."""
    running = [state.runs for state in states if state is not None]
    return None if not running else "runs" if all(running) else "partly" if any(running) else "stopped"


# -- words ------------------------------------------------------------------------------------------------------------

_ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\-_])")
_SHOWN_ESCAPE = re.compile(r"\\x1b(\[[0-9;?]*[A-Za-z]|\][^\\]*(\\x07|\\x1b\\))")  # one that was made visible already
_OF_SYSTEMD = re.compile(r"(Starting|Started|Stopping|Stopped|Failed to start|Finished) .+|.*\bjournalctl -u .*")
_WRONG = re.compile(r"error|exception|out of memory|killed|refuse|not found|no such|cannot|failed", re.I)


def without_escapes(text: str) -> str:
    """A line of an engine as it is shown: without colours, and with nothing that controls a terminal."""
    return visible(_SHOWN_ESCAPE.sub("", _ESCAPE.sub("", text)).expandtabs(4).rstrip())


def last_words(said: str, unit: str) -> tuple[str, ...]:
    """The last lines of the engine itself, without those of systemd about its unit."""
    lines = [without_escapes(line)[:_LINE_MOST] for line in said.splitlines()]
    own = [x for x in lines if x.strip() and not x.startswith(f"{unit}.service:") and not _OF_SYSTEMD.fullmatch(x)]
    return tuple(own[-WORDS_SHOWN:])


def gist(words: tuple[str, ...]) -> str:
    """The one line that says most: the last that speaks of something wrong, else the last."""
    return next((line for line in reversed(words) if _WRONG.search(line)), words[-1] if words else "")


AGAIN = 2.0  # seconds until a command whose connection was cut is tried again


async def run_ordered(command: Command, seconds: float) -> CommandOutcome:
    """How a command has ended. Where its connection was cut, it may have worked: the unit is looked at before it is
    tried once more."""
    ended = await run(with_credentials(command.argv), seconds)
    if command.argv[: len(SSH)] != SSH or not was_cut(ended.problem, ended.output):
        return ended
    unit = command.unit
    for cut in ("", ", twice"):
        why = f"ssh was cut{cut} ({(ended.output.splitlines() or [''])[-1] or ended.problem})"
        state = (await look([unit]))[unit] if unit is not None else None
        if state is not None and state.runs is not ("stop" in command.argv):
            return CommandOutcome("", f"{why}; {state.unit.name} on {state.shown}")
        if cut:
            seen = f"{state.unit.name} on {state.shown}" if state is not None else "how its unit is cannot be seen"
            return CommandOutcome(f"{why}; {seen}", ended.output)
        await asyncio.sleep(AGAIN)
        ended = await run(with_credentials(command.argv), seconds)
        if not was_cut(ended.problem, ended.output):
            break
    return ended
