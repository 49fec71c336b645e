"""Runs a command of an operation. One over ssh whose connection is cut may have worked, and is tried once more."""

from __future__ import annotations

import asyncio

from gateway.apps.control.command import CommandOutcome, run
from gateway.apps.control.ssh_errors import was_cut
from gateway.apps.control.unit_commands import SSH, Command, with_credentials
from gateway.apps.control.units import look

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
