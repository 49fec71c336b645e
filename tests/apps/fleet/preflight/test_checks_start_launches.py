"""The preflight checks of images and units on recorded outputs: what is seen, and the command that mends it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.apps.fleet.preflight.host import CommandResult, HostCheck
from tests.apps.fleet.preflight.spark import QWEN, Spark, is_mended, one

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


def unit(spark: Spark, *, words: str, path: str = "/usr/bin/docker", user: str = "root", status: int = 0) -> HostCheck:
    only = "no"
    spark.file("/bin/bash")
    spark.answers["systemctl show --no-pager"] = UNIT.format(
        words=words, path=path, user=user, only=only, status=status
    )
    return one(spark.seen("units"))


@pytest.mark.parametrize(
    ("answer", "words", "mend"),
    [
        (
            CommandResult(1, "", "Error response from daemon: No such image: x"),
            "is not on this node",
            "docker pull nvcr.io/",
        ),
        (CommandResult(1, "", "permission denied while trying to connect"), "may not use docker", "usermod -aG docker"),
        (
            CommandResult(1, "", "Cannot connect to the Docker daemon at unix:///x"),
            "docker does not",
            "systemctl start docker",
        ),
        ("amd64 sha256:1\n", "is built for amd64, this is aarch64", "--platform linux/arm64 nvcr.io"),
    ],
)
def test_an_image_that_cannot_be_started(spark: Spark, answer: str | CommandResult, words: str, mend: str) -> None:
    spark.answers["docker image inspect"] = answer
    is_mended(one(spark.seen("image")), "fail", words, mend)


def test_a_backend_without_an_image_needs_its_program(spark: Spark) -> None:
    host = replace(QWEN, image=None, program="/opt/vllm/bin/vllm")
    assert one(spark.seen("image", host)).verdict == "fail"
    spark.file("/opt/vllm/bin/vllm")
    assert one(spark.seen("image", host)).verdict == "ok"
    spark.answers["sh -c"] = CommandResult(127)
    assert one(spark.seen("image", replace(QWEN, image=None, program="vllm"))).verdict == "warn"


def test_a_unit_that_starts_a_script_which_is_not_in_the_container(spark: Spark) -> None:
    spark.answers["docker cp vllm_ds4:/workspace/vllm-head-090.sh -"] = CommandResult(
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
