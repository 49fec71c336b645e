"""Each preflight check on recorded outputs: what is seen, and the command that mends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.fleet.preflight.host import Ran
from gateway.fleet.preflight.node import CHECKS, examine
from gateway.fleet.preflight.terms import Check, ExpectedNode
from tests.fleet.spark import DS4, QWEN, Spark


@pytest.fixture
def spark(tmp_path: Path) -> Spark:
    return Spark(tmp_path)


def one(checks: list[Check]) -> Check:
    (check,) = checks
    return check


def is_mended(check: Check, verdict: str, words: str, mend: str) -> None:
    assert (check.verdict, words in check.seen, mend in (check.mend or "")) == (verdict, True, True), check


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
    spark.answers = {"nvidia-smi": Ran(None, error="nvidia-smi: no answer in time")}
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
        old: Ran(2, "", "Field is not a valid field to query."),
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


# -- images, units ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words", "mend"),
    [
        (Ran(1, "", "Error response from daemon: No such image: x"), "is not on this node", "docker pull nvcr.io/"),
        (Ran(1, "", "permission denied while trying to connect"), "may not use docker", "usermod -aG docker"),
        (Ran(1, "", "Cannot connect to the Docker daemon at unix:///x"), "docker does not", "systemctl start docker"),
        ("amd64 sha256:1\n", "is built for amd64, this is aarch64", "--platform linux/arm64 nvcr.io"),
    ],
)
def test_an_image_that_cannot_be_started(spark: Spark, answer: str | Ran, words: str, mend: str) -> None:
    spark.answers["docker image inspect"] = answer
    is_mended(one(spark.seen("image")), "fail", words, mend)


def test_a_backend_without_an_image_needs_its_program(spark: Spark) -> None:
    host = replace(QWEN, image=None, program="/opt/vllm/bin/vllm")
    assert one(spark.seen("image", host)).verdict == "fail"
    spark.file("/opt/vllm/bin/vllm")
    assert one(spark.seen("image", host)).verdict == "ok"
    spark.answers["sh -c"] = Ran(127)
    assert one(spark.seen("image", replace(QWEN, image=None, program="vllm"))).verdict == "warn"


UNIT = """\
Id=vllm-ds4-head.service
LoadState=loaded
FragmentPath=/etc/systemd/system/vllm-ds4-head.service
User={user}
PermissionsStartOnly={only}
ExecStartPre={{ path=/bin/bash ; argv[]=/bin/bash -c echo 3 > /proc/sys/vm/drop_caches ; ignore_errors=no ; pid=0 }}
ExecStart={{ path={path} ; argv[]={words} ; ignore_errors=no ; start_time=[n/a] ; pid=0 ; status=0/0 }}
ExecMainStatus={status}
"""


def unit(spark: Spark, *, words: str, path: str = "/usr/bin/docker", user: str = "root", status: int = 0) -> Check:
    only = "no"
    spark.file("/bin/bash")
    spark.answers["systemctl show --no-pager"] = UNIT.format(
        words=words, path=path, user=user, only=only, status=status
    )
    return one(spark.seen("units"))


def test_a_unit_that_starts_a_script_which_is_not_in_the_container(spark: Spark) -> None:
    spark.answers["docker cp vllm_ds4:/workspace/vllm-head-090.sh -"] = Ran(
        1, "", "Error response from daemon: Could not find the file /workspace/vllm-head-090.sh in container vllm_ds4"
    )
    words = "/usr/bin/docker exec vllm_ds4 bash /workspace/vllm-head-090.sh"
    check = unit(spark, words=words)
    seen = "/workspace/vllm-head-090.sh in container vllm_ds4"
    is_mended(check, "fail", seen, "sudo systemctl edit --full vllm-ds4-head.service")
    spark.answers["docker cp vllm_ds4:/workspace/vllm-head-090.sh -"] = "a tar"
    assert unit(spark, words=words).verdict == "ok"


def test_a_unit_that_starts_what_is_not_on_the_node(spark: Spark) -> None:
    gone = unit(spark, path="/opt/start.sh", words="/opt/start.sh")
    is_mended(gone, "fail", "/opt/start.sh", "systemctl edit")
    script = unit(spark, path="/bin/bash", words="/bin/bash /opt/launch.sh")
    is_mended(script, "fail", "/opt/launch.sh", "systemctl edit")


def test_a_unit_that_loops_on_127_and_one_that_drops_caches_without_the_right_to(spark: Spark) -> None:
    is_mended(unit(spark, words="/usr/bin/docker run x", status=127), "fail", "status 127", "reset-failed")
    is_mended(unit(spark, words="/usr/bin/docker run x", user="milo"), "warn", "as user milo", "ExecStartPre=+")


def test_a_unit_that_is_not_installed_is_only_a_warning(spark: Spark) -> None:
    spark.answers["systemctl show --no-pager"] = "Id=spark-qwen36.service\nLoadState=not-found\n"
    is_mended(one(spark.seen("units")), "warn", "not installed", "gateway fleet render")


# -- weights ----------------------------------------------------------------------------------------------------------


def test_weights_that_were_never_downloaded(spark: Spark) -> None:
    other = replace(QWEN, models=("org/other",))
    check = one(spark.seen("weights", other))
    is_mended(check, "warn", "the first start downloads them; 838.2 GiB of disk are free", "hf download org/other")
    assert check.mend == "hf download org/other --cache-dir /home/user/.cache/huggingface/hub"
    offline = one(spark.seen("weights", replace(other, env={"HF_HUB_OFFLINE": "1"})))
    is_mended(offline, "fail", "may not download", "hf download org/other")


def test_weights_of_which_a_part_is_missing(spark: Spark) -> None:
    folder = spark.root / "home/user/models/DeepSeek-V4-Flash"
    (folder / "model-00007-of-00046.safetensors").unlink()
    (folder / "model-00009-of-00046.safetensors").write_text("")
    check = one(spark.seen("weights", DS4))
    is_mended(check, "fail", "model-00009-of-00046.safetensors, model-00007-of-00046.safetensors", "ls -la /home/user")


def test_weights_that_no_volume_holds(spark: Spark) -> None:
    is_mended(one(spark.seen("weights", replace(QWEN, volumes=()))), "warn", "no volume holds", "launch.volumes")


def test_the_draft_model_is_looked_for_too(spark: Spark) -> None:
    checks = spark.seen("weights", replace(QWEN, models=(*QWEN.models, "google/gemma-assistant")))
    assert [check.verdict for check in checks] == ["ok", "warn"]


def test_a_home_in_a_volume_is_the_homes_of_the_user_there(spark: Spark) -> None:
    spark.weights("/home/user/vllm/hub/models--a--b/snapshots/1", 1)
    for home in ("~/vllm", "$HOME/vllm", "${HOME}/vllm"):
        backend = replace(QWEN, models=("a/b",), volumes=(f"{home}:/models",), env={"HF_HOME": "/models"})
        assert one(spark.seen("weights", backend)).verdict == "ok"


def test_a_folder_without_a_beginning_ends_the_look_for_its_disk(spark: Spark) -> None:
    assert one(spark.seen("weights", replace(QWEN, image=None, env={"HF_HUB_CACHE": "models"}))).verdict == "warn"


def test_a_disk_that_is_nearly_full(spark: Spark) -> None:
    spark.answers["df -P"] = "Filesystem x\n/dev/nvme 4 3 1000000000 99% /\n"
    is_mended(one(spark.seen("weights")), "warn", "0.9 GiB of disk are free", "docker image prune")


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

    def run(argv: Sequence[str]) -> Ran:
        line = " ".join(argv)
        if "timedatectl" in line:
            raise RuntimeError("odd")
        if "df" in line:
            ended.wait(20)
        return spark.run(argv)

    host.run = run
    start = time.monotonic()
    checks = {check.check: check for check in examine(ExpectedNode("spark1", backends=(QWEN,)), host, patience=0.5)}
    assert time.monotonic() - start < 5
    ended.set()
    assert "RuntimeError: odd" in checks["clock"].seen
    assert (checks["weights"].verdict, checks["weights"].seen) == ("unknown", "has not ended after 0.5 s")
    assert checks["zombies"].verdict == "ok"


@pytest.mark.parametrize("output", ["", "\0\xff\n,,,,\n", "x" * 10_000, "a\n\nb={ path= ; argv[]= ; }\n", "{" * 500])
def test_whatever_a_command_prints_no_check_raises(spark: Spark, output: str) -> None:
    for code in (0, 1, None):
        spark.answers = {"": Ran(code, output, output)}
        for check in examine(ExpectedNode("spark1", backends=(QWEN, DS4)), spark.host()):
            assert "the check itself failed" not in check.seen, check


def test_an_empty_machine_is_told_without_a_check_that_raises(tmp_path: Path) -> None:
    host = Spark(tmp_path / "a").host()
    host.root = str(tmp_path / "nothing")
    checks = examine(ExpectedNode("spark1", 1, "http://x", (QWEN, DS4)), host)
    assert not [check for check in checks if "the check itself failed" in check.seen]
