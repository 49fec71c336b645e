"""The preflight checks of ports and processes on recorded outputs: what is seen, and the command that mends it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.apps.fleet.preflight.host import CommandResult
from tests.apps.fleet.preflight.spark import DS4, QWEN, Spark, is_mended, one


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


# -- what is the backend's own ----------------------------------------------------------------------------------------

SHOWN = "systemctl show --no-pager --property=ActiveState,SubState -- spark-qwen36.service"


def test_a_port_that_the_backends_own_unit_has_while_it_loads_is_fine(spark: Spark) -> None:
    spark.socket(8001, 5555, None)
    spark.answers = {SHOWN: "ActiveState=activating\nSubState=start-post\n", **spark.answers}
    check = one(spark.seen("ports"))
    assert (check.verdict, check.seen) == ("ok", "port 8001 is used by the backend itself: its unit is activating")
    spark.answers[SHOWN] = "ActiveState=activating\nSubState=auto-restart\n"
    assert one(spark.seen("ports")).verdict == "fail", "between two attempts it has no port"


def test_a_port_of_the_backends_own_container_is_fine_and_one_of_another_is_not(spark: Spark) -> None:
    ports = "docker ps --format {{.Names}}\t{{.Ports}}"
    spark.answers |= {
        ports: "spark-qwen36\t0.0.0.0:8001->8001/tcp\n",
        "docker ps --format {{.Names}}": "spark-qwen36\n",
    }
    spark.answers = {ports: spark.answers[ports], **spark.answers}
    assert one(spark.seen("ports")).verdict == "ok"
    spark.answers[ports] = "old\t0.0.0.0:8001->8001/tcp\n"
    is_mended(one(spark.seen("ports")), "fail", "container old", "docker stop old")


def test_memory_that_the_backends_own_unit_takes_while_it_loads_is_fine(spark: Spark) -> None:
    spark.memory(free_gib=5.0, available_gib=6.0)
    spark.answers = {SHOWN: "ActiveState=activating\nSubState=start\n", **spark.answers}
    assert "its unit is activating" in one(spark.seen("free-memory")).seen


# -- sudo -------------------------------------------------------------------------------------------------------------

RULES = """\
User ops may run the following commands on spark1:
    (root) NOPASSWD: /usr/bin/systemctl start --no-block spark-qwen36, /usr/bin/systemctl stop
        spark-qwen36
"""


@pytest.mark.parametrize(
    ("rules", "verdict"),
    [
        (RULES, "ok"),
        ("    (ALL : ALL) NOPASSWD: ALL\n", "ok"),
        ("    (ALL : ALL) ALL\n", "fail"),
        (RULES.replace("qwen36", "other"), "fail"),
        (CommandResult(1, "", "sudo: a password is required"), "fail"),
    ],
)
def test_the_user_of_ssh_may_start_the_unit_without_a_password(
    spark: Spark, rules: str | CommandResult, verdict: str
) -> None:
    by_unit = replace(QWEN, by_unit=True)
    spark.answers |= {"id -un": "ops\n", "sudo -n -l": rules}
    check = one(spark.seen("sudo", by_unit))
    assert check.verdict == verdict, check
    assert verdict == "ok" or "install.sh" in (check.mend or "")
    spark.answers["id -un"] = "root\n"
    assert one(spark.seen("sudo", by_unit)).verdict == "ok"
    assert one(spark.seen("sudo")).verdict == "ok", "the gateway starts no unit of it"


def test_a_unit_that_the_gateway_starts_must_be_installed(spark: Spark) -> None:
    spark.answers["systemctl show --no-pager"] = "Id=spark-qwen36.service\nLoadState=not-found\n"
    assert one(spark.seen("units")).verdict == "warn"
    is_mended(one(spark.seen("units", replace(QWEN, by_unit=True))), "fail", "is not installed", "fleet render")
