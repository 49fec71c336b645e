from __future__ import annotations

from pathlib import Path

import pytest

from tests.apps.fleet.preflight.spark import Spark
from tests.apps.fleet.render.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def spark(tmp_path: Path) -> Spark:
    return Spark(tmp_path)
