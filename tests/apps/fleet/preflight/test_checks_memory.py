"""The preflight checks of memory on recorded outputs: what is seen, and the command that mends it."""

from __future__ import annotations

from tests.apps.fleet.preflight.spark import DS4, Spark, is_mended, one


def test_page_cache_that_fails_the_free_memory_check_is_dropped(spark: Spark) -> None:
    spark.memory(free_gib=4.75, available_gib=114.0)
    check = one(spark.seen("free-memory", DS4))
    is_mended(
        check, "fail", "only 4.8 GiB are free, 109.2 GiB more are page cache", "echo 3 > /proc/sys/vm/drop_caches"
    )
    assert "asks for 107.7 GiB (0.9 of 119.7 GiB)" in check.seen
    assert check.backend == "ds4"


def test_memory_that_somebody_else_holds_does_not_come_back_with_the_cache(spark: Spark) -> None:
    spark.memory(free_gib=12.0, available_gib=14.0)
    check = one(spark.seen("free-memory"))
    is_mended(check, "fail", "even without page cache", "--gpu-memory-utilization 0.1")


def test_a_backend_that_runs_has_its_memory_already(spark: Spark) -> None:
    spark.memory(free_gib=12.0, available_gib=14.0)
    spark.pages["http://127.0.0.1:8001/v1/models"] = '{"data": [{"id": "RedHatAI/Qwen3.6-35B-A3B-NVFP4"}]}'
    assert one(spark.seen("free-memory")).verdict == "ok"


def test_without_meminfo_nothing_is_claimed(spark: Spark) -> None:
    spark.file("/proc/meminfo", "")
    assert one(spark.seen("free-memory")).verdict == "unknown"


def test_modeset_0_hides_half_of_the_memory(spark: Spark) -> None:
    spark.file("/proc/cmdline", "quiet nvidia-drm.modeset=0")
    is_mended(one(spark.seen("visible-memory")), "warn", "62.0 GiB", "modeset=0/modeset=1/g' /etc/default/grub")
    is_mended(one(spark.seen("visible-memory", DS4)), "fail", "less than ds4 asks for", "sudo reboot")
    spark.file("/proc/cmdline", "quiet")
    spark.file("/sys/module/nvidia_drm/parameters/modeset", "N\n")
    is_mended(one(spark.seen("visible-memory")), "warn", "modeset=0 is set", "/etc/modprobe.d/")


def test_a_memory_that_routes_yaml_has_wrong(spark: Spark) -> None:
    check = spark.seen("visible-memory", memory=64 * 1024**3)[0]
    is_mended(check, "warn", "routes.yaml says 64.0 GiB", "memory: 119.67GiB")


def test_segments_of_dead_workers_are_removed_and_those_of_a_running_engine_kept(spark: Spark) -> None:
    for name in ("psm_1a2b", "sem.mp-xyz", "other"):
        spark.file(f"/dev/shm/{name}", "x")
    is_mended(one(spark.seen("shared-memory")), "warn", "2 segments", "rm -f /dev/shm/psm_* /dev/shm/sem.mp-*")
    spark.process(70, 1, "/usr/bin/python3 /usr/local/bin/vllm serve model")
    assert one(spark.seen("shared-memory")).verdict == "ok"
