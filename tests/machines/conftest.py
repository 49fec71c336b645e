"""The scene, built once for all tests; what it needs and cannot have here is the reason why they are skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.machines.install import install
from tests.machines.scene import missing, script


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
