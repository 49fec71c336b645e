"""What the last words of engines mean."""

from __future__ import annotations

import pytest

from gateway.apps.control.troubles import cause_of
from gateway.apps.control.unit_commands import Unit

UNIT = Unit("spark1", "ops@spark1", "spark-c")


@pytest.mark.parametrize(
    ("line", "cause", "mend", "final"),
    [
        (
            "Free memory on device (12.5/119.6 GiB) on startup is less than desired GPU memory utilization (0.1).",
            "too little memory is free on spark1", "gateway fleet preflight --node spark1", False,
        ),
        ("torch.OutOfMemoryError: CUDA out of memory.", "CUDA ran out of memory", "gateway fleet plan", False),
        ("Out of memory: Killed process 7 (VLLM::EngineCor)", "the kernel killed it", "of c", False),
        ("block_size (2128) must be <= max_num_batched_tokens (2048)", "Mamba block", "8192 in backends.c.", True),
        ("OSError: org/m does not appear to have a file named config.json", "not on spark1", "preflight", True),
        ("OSError: [Errno 98] Address already in use", "port is in use", "preflight", False),
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp", "do not find each other", "restart c", False),
        ("Cannot re-initialize CUDA in forked subprocess.", "forked", "VLLM_WORKER_MULTIPROC_METHOD", True),
        ("CUDA memory is still held by processes that are gone (71)", "ghosts", "ssh -t ops@spark1 sudo reboot", True),
        ("vllm serve: error: argument --foo: invalid choice", "does not know", "gateway fleet check", True),
        ("HF_TOKEN has no value: write it into /etc/x", "variable", "/etc/spark/spark-c.env", True),
    ],
)  # fmt: skip
def test_a_line_that_means_something(line: str, cause: str, mend: str, final: bool) -> None:
    found = cause_of(["INFO loading", line, "INFO ended"], "c", UNIT)
    assert found is not None
    assert cause in found.cause
    assert mend in found.mend
    assert (found.final, found.line) == (final, line)


def test_the_cause_counts_more_than_the_engine_that_dies_of_it() -> None:
    words = ["torch.OutOfMemoryError: CUDA out of memory", "RuntimeError: Engine core initialization failed"]
    found = cause_of(words, "c", UNIT)
    assert found is not None
    assert "CUDA ran out" in found.cause
    alone = cause_of(words[1:], "c", UNIT)
    assert alone is not None
    assert "core died" in alone.cause
    assert cause_of(["INFO: all is well"], "c", UNIT) is None
