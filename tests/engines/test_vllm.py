"""What is read of vLLM's page of counters beside the counters."""

from __future__ import annotations

import pytest

from gateway.engines.vllm import read_start_time
from tests.simulator.wire import load
from tests.sliced import whole


def test_the_start_time_of_a_real_vllm_is_read() -> None:
    assert whole(read_start_time(load("metrics").reply.body)) == 1795222286.54


@pytest.mark.parametrize(
    ("page", "started"),
    [
        (b"", None),
        (b"# TYPE process_start_time_seconds gauge\n", None),
        (b"process_start_time_seconds soon\n", None),
        (b'process_start_time_seconds{pid="7"} 12.5\n', 12.5),
        (b"my_process_start_time_seconds 3\n", None),
    ],
)
def test_other_pages_tell_it_or_not(page: bytes, started: float | None) -> None:
    assert whole(read_start_time(page)) == started
