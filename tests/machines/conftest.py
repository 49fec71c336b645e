"""The scene, built once for all tests; what it needs and cannot have here is the reason why they are skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.machines.install import by_ops, install
from tests.machines.scene import chat, missing, on, operation, script, states, until


@pytest.fixture(scope="session")
def image() -> Iterator[None]:
    """A docker daemon that has the image, built as docs/deploy.md says."""
    if os.environ.get("MACHINES_RUNNING"):
        yield
        return
    why = missing("dockerd", "docker", "debootstrap", "iptables", "ip") or script("docker_up.sh", within=60)
    if why is not None:
        pytest.skip(f"no docker daemon can run here: {why}")
    failed = script("image.sh")
    assert failed is None, failed
    yield
    script("docker_up.sh", "down")


@pytest.fixture(scope="session")
def fleet(image: None) -> Iterator[None]:
    """Two Sparks and the gateway, installed by the commands of the pages, in the mode `daily`."""
    if os.environ.get("MACHINES_RUNNING"):  # of an earlier run: used and left as they are
        yield
        return
    why = missing("systemd-nspawn", "nsenter")
    if why is not None:
        pytest.skip(why)
    script("boot.sh", "down")
    for name in ("trees.sh", "boot.sh"):
        failed = script(name)
        assert failed is None, failed
    install()
    yield
    script("boot.sh", "down")


@pytest.fixture
def daily(fleet: None) -> Iterator[None]:
    """The mode `daily`, serving, and no engine with orders."""
    yield
    awake = "rm -f /srv/models/.fake/*; docker unpause $(docker ps -q --filter status=paused) >/dev/null 2>&1"
    running = {node: on(node, f"{awake}; docker ps --format '{{{{.Names}}}}'").stdout.split() for node in DAILY}
    if running != DAILY or operation()["state"] == "running" or not is_daily():
        on("gw", "gateway fleet cancel", user="ops")  # what a test that failed has left
        on("gw", "gateway fleet stop small", user="ops")  # one that hangs would be waited for
        by_ops("gateway fleet switch daily", 400)
    until(lambda: chat("main") == (200, "qwen36"), 120, "the fleet is well after the test")


DAILY = {"spark1": ["spark-qwen36"], "spark2": ["spark-gemma4"]}  # the containers of each node


def is_daily() -> bool:
    seen = states()
    return all(seen.get(name) in ("ready", "busy") for name in ("qwen36", "gemma4", "small"))
