"""The preflight checks of the GPU on recorded outputs: what is seen, and the command that mends it."""

from __future__ import annotations

import pytest

from gateway.apps.fleet.preflight.host import CommandResult
from tests.apps.fleet.preflight.spark import Spark, is_mended, one


def test_a_process_that_is_gone_and_has_gpu_memory_needs_a_reboot(spark: Spark) -> None:
    spark.answers = {"nvidia-smi --query-compute-apps": "4711, 300 MiB\n9999, 80000 MiB\n", **spark.answers}
    check = one(spark.seen("zombies"))
    is_mended(check, "fail", "9999 (80000 MiB)", "sudo reboot")
    assert "4711" not in check.seen


@pytest.mark.parametrize("file", ["/.dockerenv", "/run/.containerenv"])
def test_inside_a_container_nobody_is_called_a_zombie(spark: Spark, file: str) -> None:
    spark.file(file)
    spark.answers = {"nvidia-smi --query-compute-apps": "9999, 80000 MiB\n", **spark.answers}
    assert one(spark.seen("zombies")).verdict == "unknown"


def test_a_driver_that_does_not_answer_needs_a_reboot(spark: Spark) -> None:
    spark.answers = {"nvidia-smi": CommandResult(None, error="nvidia-smi: no answer in time")}
    for name in ("zombies", "driver", "clocks"):
        is_mended(one(spark.seen(name)), "fail", "no answer in time", "sudo reboot")


@pytest.mark.parametrize(
    ("version", "verdict", "words"),
    [
        ("590.48.01", "ok", "590.48.01"),
        ("580.95.05", "warn", "forward compatibility"),
        ("570.00", "fail", "older than 580"),
    ],
)
def test_the_driver_is_new_enough_for_the_images(spark: Spark, version: str, verdict: str, words: str) -> None:
    spark.answers = {"nvidia-smi --query-gpu=driver_version": version + "\n", **spark.answers}
    check = one(spark.seen("driver"))
    assert (check.verdict, words in check.seen) == (verdict, True)


@pytest.mark.parametrize(
    ("line", "verdict", "words"),
    [
        ("46, 2411, 3003, 0x0000000000000001", "ok", "46 degrees, 2411 of 3003 MHz"),
        ("46, [N/A], [N/A], [Not Supported]", "ok", "46 degrees"),
        ("90, 1200, 3003, 0x0000000000000020", "warn", "the driver slows it down for its temperature"),
        ("50, 507, 3003, 0x0000000000000080", "warn", "the power supply slows it down"),
        ("[N/A], [N/A], [N/A], [N/A]", "unknown", "neither temperature nor clock"),
        ("", "unknown", "neither"),
    ],
)
def test_clocks_that_are_held_down(spark: Spark, line: str, verdict: str, words: str) -> None:
    spark.answers = {"nvidia-smi --query-gpu=temperature": line + "\n", **spark.answers}
    check = one(spark.seen("clocks"))
    assert (check.verdict, words in check.seen) == (verdict, True), check


def test_an_older_driver_is_asked_by_the_older_name(spark: Spark) -> None:
    old = "nvidia-smi --query-gpu=temperature.gpu,clocks.sm,clocks.max.sm,clocks_event_reasons"
    spark.answers = {
        old: CommandResult(2, "", "Field is not a valid field to query."),
        "nvidia-smi --query-gpu=temperature": "46, 2411, 3003, 0x40",
    }
    is_mended(one(spark.seen("clocks")), "warn", "the hardware slows it down for its temperature", "nvidia-smi -q")
