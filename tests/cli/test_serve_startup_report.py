"""The report of `gateway serve` at its start."""

from __future__ import annotations

import time

from gateway.cli.serve import startup_report
from tests.runtime.test_chosen_mode import sparks


async def test_the_report_at_the_start_names_what_is_parked_and_nothing_as_lost() -> None:
    async with sparks("modes: {ds4: [ds4]}\n") as s:
        await s.gateway.until_ready("ds4")
        gateway = s.gateway.gateway
        summary, wrong = startup_report(gateway.snapshot, gateway.fleet.states, time.monotonic())
        assert (summary, wrong) == ("first look: ready: ds4; parked: qwen36, gemma4, qwen8b", [])
