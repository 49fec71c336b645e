"""The preflight checks of the machine around the engine, on recorded outputs."""

from __future__ import annotations

from dataclasses import replace

from tests.apps.fleet.preflight.spark import DS4, Spark, is_mended, one


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
