"""What every test relies on."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.demo_process import ROOT

ASK = "import tests.conftest, subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', %r]).returncode)"
CHILD = "import signal, sys; sys.exit(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"


def test_children_end_by_ctrl_c_also_when_the_tests_were_started_in_the_background() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for `make test &`
    try:
        done = subprocess.run([sys.executable, "-c", ASK % CHILD], cwd=ROOT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.returncode == 0
