"""All preflight checks of a node together: a healthy one, and checks that fail or hang."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.apps.fleet.preflight.host import CommandResult, ExpectedNode
from gateway.apps.fleet.preflight.node import CHECKS, examine
from tests.apps.fleet.preflight.spark import DS4, QWEN, Spark
from tests.limits import within


@pytest.mark.parametrize("name", [name for name in CHECKS if name != "exporter"])
def test_a_healthy_spark_has_nothing_to_mend(spark: Spark, name: str) -> None:
    for check in spark.seen(name, QWEN, DS4):
        assert (check.check, check.verdict, check.mend) == (name, "ok", None), check


def test_a_check_that_fails_itself_or_hangs_is_unknown_and_the_others_are_seen(spark: Spark) -> None:
    host, ended = spark.host(), threading.Event()

    def run(argv: Sequence[str]) -> CommandResult:
        line = " ".join(argv)
        if "timedatectl" in line:
            raise RuntimeError("odd")
        if "df" in line:
            ended.wait(20)
        return spark.run(argv)

    host.run = run
    with within(5):
        checks = {check.check: check for check in examine(ExpectedNode("spark1", backends=(QWEN,)), host, patience=0.5)}
    ended.set()
    assert "RuntimeError: odd" in checks["clock"].seen
    assert (checks["weights"].verdict, checks["weights"].seen) == ("unknown", "has not ended after 0.5 s")
    assert checks["zombies"].verdict == "ok"


@pytest.mark.parametrize("output", ["", "\0\xff\n,,,,\n", "x" * 10_000, "a\n\nb={ path= ; argv[]= ; }\n", "{" * 500])
def test_whatever_a_command_prints_no_check_raises(spark: Spark, output: str) -> None:
    for code in (0, 1, None):
        spark.answers = {"": CommandResult(code, output, output)}
        for check in examine(ExpectedNode("spark1", backends=(QWEN, DS4)), spark.host()):
            assert "the check itself failed" not in check.seen, check


def test_an_empty_machine_is_told_without_a_check_that_raises(tmp_path: Path) -> None:
    host = Spark(tmp_path / "a").host()
    host.root = str(tmp_path / "nothing")
    checks = examine(ExpectedNode("spark1", 1, "http://x", (QWEN, DS4)), host)
    assert not [check for check in checks if "the check itself failed" in check.seen]
