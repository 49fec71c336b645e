"""What every test relies on."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from tests.demo_process import ROOT
from tests.waiting import until

ASK = "import tests.conftest, subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', %r]).returncode)"
CHILD = "import signal, sys; sys.exit(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"


def test_children_end_by_ctrl_c_also_when_the_tests_were_started_in_the_background() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for `make test &`
    try:
        done = subprocess.run([sys.executable, "-c", ASK % CHILD], cwd=ROOT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.returncode == 0


def froze(seconds: float) -> None:
    """The machine does not let this process run."""
    subprocess.run([sys.executable, "-c", f"import time; time.sleep({seconds})"], check=True)


async def test_time_in_which_the_machine_stood_still_is_no_waiting() -> None:
    came = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.call_soon(froze, 0.6)
    loop.call_later(0.65, came.set)
    await until(came.is_set, 0.4)


async def test_what_never_comes_is_waited_for_no_longer_than_was_said() -> None:
    with pytest.raises(TimeoutError):
        await until(lambda: False, 0.2)
