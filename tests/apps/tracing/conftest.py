from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.apps.tracing.otlp import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as started:
        yield started
