"""Each preflight check on recorded outputs: what is seen, and the command that mends it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.apps.fleet.preflight.host import CommandResult
from gateway.apps.fleet.preflight.node import CHECKS, examine
from gateway.apps.fleet.preflight.terms import ExpectedNode
from tests.apps.fleet.preflight.spark import DS4, QWEN, Spark, is_mended, one
from tests.limits import within


@pytest.mark.parametrize("name", [name for name in CHECKS if name != "exporter"])
def test_a_healthy_spark_has_nothing_to_mend(spark: Spark, name: str) -> None:
    for check in spark.seen(name, QWEN, DS4):
        assert (check.check, check.verdict, check.mend) == (name, "ok", None), check


# -- the GPU ----------------------------------------------------------------------------------------------------------


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


# -- memory -----------------------------------------------------------------------------------------------------------


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


# -- ports, processes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["python3 -m http.server 8001 --token=hf_x", "server --key s3cret x"])
def test_a_port_that_a_process_has_is_named_with_it(spark: Spark, command: str) -> None:
    spark.process(815, 1, command)
    spark.socket(8001, 5555, 815)
    shown = f"port 8001 is used by process 815 ({'server --key' if '--key' in command else 'python3 -m http.server'})"
    is_mended(one(spark.seen("ports")), "fail", shown, "sudo kill 815")


def test_a_port_that_a_container_publishes_is_freed_by_stopping_it(spark: Spark) -> None:
    spark.answers = {"docker ps --format": "old\t0.0.0.0:8001->8000/tcp, [::]:8001->8000/tcp\n", **spark.answers}
    is_mended(one(spark.seen("ports")), "fail", "container old", "docker stop old")


def test_a_port_whose_owner_only_root_sees(spark: Spark) -> None:
    spark.socket(8001, 5555, None)
    is_mended(one(spark.seen("ports")), "fail", "only root sees", "sudo ss -ltnp 'sport = :8001'")


def test_a_port_that_the_backend_itself_has_is_fine(spark: Spark) -> None:
    spark.socket(8001, 5555, None)
    spark.pages["http://127.0.0.1:8001/v1/models"] = '{"data": [{"id": "RedHatAI/Qwen3.6-35B-A3B-NVFP4"}]}'
    assert one(spark.seen("ports")).verdict == "ok"
    spark.pages["http://127.0.0.1:8001/v1/models"] = '{"data": [{"id": "another"}]}'
    assert one(spark.seen("ports")).verdict == "fail"
    spark.pages["http://127.0.0.1:8001/v1/models"] = "status 401"  # it asks for its key
    assert one(spark.seen("ports")).verdict == "ok"


def test_the_port_where_two_nodes_meet_is_looked_at_on_both(spark: Spark) -> None:
    spark.process(815, 1, "VLLM::Worker_TP0")
    spark.socket(29501, 5555, 815)
    checks = {check.seen.split()[1]: check for check in spark.seen("ports", DS4)}
    assert checks["8000"].verdict == "ok"
    is_mended(checks["29501"], "fail", "VLLM::Worker_TP0", "sudo kill 815")
    assert [check.seen.split()[1] for check in spark.seen("ports", replace(DS4, worker=True))] == ["29501"]


def test_workers_without_their_engine_are_killed_and_those_with_it_are_not(spark: Spark) -> None:
    spark.process(70, 1, "/usr/bin/python3 /usr/local/bin/vllm serve model --port 8000")
    spark.process(71, 70, "VLLM::EngineCore")
    spark.process(72, 71, "VLLM::Worker_TP0")
    assert one(spark.seen("leftovers")).verdict == "ok"
    spark.process(90, 1, "VLLM::Worker_TP0_EP0")
    check = one(spark.seen("leftovers"))
    is_mended(check, "fail", "90 (VLLM::Worker_TP0_EP0)", "sudo kill -9 90")
    assert check.mend == "sudo kill -9 90"


# -- the machine ------------------------------------------------------------------------------------------------------


def test_variables_that_are_set_for_everybody(spark: Spark) -> None:
    spark.file("/etc/environment", "VLLM_API_KEY=secret\nexport NCCL_DEBUG=INFO\nPATH=/bin\n")
    spark.answers["systemctl show-environment"] = "VLLM_WORKER_MULTIPROC_METHOD=fork\nLANG=C\n"
    key, debug, fork = spark.seen("environment")
    is_mended(key, "warn", "VLLM_API_KEY in /etc/environment", "VLLM_API_KEY=/d' /etc/environment")
    is_mended(debug, "warn", "NCCL_DEBUG", "/etc/environment")
    is_mended(fork, "fail", "ShmRingBuffer", "sudo systemctl unset-environment VLLM_WORKER_MULTIPROC_METHOD")
    assert "secret" not in str((key, debug, fork))


def test_the_link_between_two_nodes(spark: Spark) -> None:
    spark.interface("bond0", mtu=1500)
    is_mended(one(spark.seen("network", DS4)), "warn", "MTU 1500", "sudo ip link set dev bond0 mtu 9000")
    spark.interface("bond0", state="down")
    is_mended(one(spark.seen("network", DS4)), "fail", "bond0 is down", "sudo ip link set dev bond0 up")
    spark.interface("bond0")
    lost = replace(DS4, env={"NCCL_SOCKET_IFNAME": "enp1s0", "NCCL_IB_HCA": "mlx5_0"})
    interface, adapter = spark.seen("network", lost)
    is_mended(interface, "fail", "no interface enp1s0", "one that exists under backends.ds4.launch.env: bond0")
    is_mended(adapter, "fail", "no adapter mlx5_0", "rocep1s0f0, rocep1s0f1")
    is_mended(one(spark.seen("network", replace(DS4, env={}))), "warn", "NCCL chooses", "one of bond0")


def test_a_clock_that_nobody_sets(spark: Spark) -> None:
    spark.answers["timedatectl show"] = "no\n"
    is_mended(one(spark.seen("clock")), "warn", "not synchronised", "sudo timedatectl set-ntp true")


def test_the_exporter_answers_with_metrics(spark: Spark) -> None:
    is_mended(one(spark.seen("exporter")), "warn", "does not answer", "systemctl list-units --all '*exporter*'")
    spark.pages["http://spark1:9835/metrics"] = "<html>login</html>"
    is_mended(one(spark.seen("exporter")), "warn", "not with metrics", "curl -sS")
    spark.pages["http://spark1:9835/metrics"] = '# HELP t x\nnode_hwmon_temp_celsius{chip="a"} 46.5\n'
    assert one(spark.seen("exporter")).verdict == "ok"


# -- all of them ------------------------------------------------------------------------------------------------------


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
