"""Settings of every test.

Property tests take the same examples on every run, so that a red run can be run again and a green one says what it
said before. `make fuzz` draws new examples each time: it is how new failures are looked for. No example has a deadline:
a machine may be busy; tests that are about time measure it themselves.
"""

from __future__ import annotations

import gc
import os
import signal
from inspect import iscoroutinefunction

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.envelope")  # its assertions show what they compare

# A shell starts what it puts into the background with SIGINT ignored, and children inherit that: those that tests stop
# with Ctrl-C would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.register_profile("random", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_addoption(parser: pytest.Parser) -> None:
    choices = ("first", "repeated", "never")
    parser.addoption("--decide", choices=choices, default="first", help="which requests a test's gateway decides ahead")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "decided_both_ways: run with requests decided ahead, and each decided anew")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("decided_both_ways") and iscoroutinefunction(metafunc.function):
        metafunc.parametrize("decide", ["first", "never"], indirect=True)


@pytest.fixture(autouse=True)
def decide(request: pytest.FixtureRequest) -> None:
    """Which requests `running_gateway` decides ahead, where the test does not say it."""
    from tests import support

    support.DECIDES_AHEAD = getattr(request, "param", request.config.getoption("--decide"))


def pytest_collection_finish() -> None:
    """The collected tests live as long as this process: no garbage collection has to look at them."""
    gc.collect()
    gc.freeze()
