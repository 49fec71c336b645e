"""The other steps of the launch scripts, run for real: prepare, ready, warm-up, stop, clean."""

from __future__ import annotations

import json
import mmap
import os
import re
from pathlib import Path

import pytest

from tests.apps.fleet.render.blocks import fleet, one_backend, render, text_of
from tests.apps.fleet.render.machine import CALLED, Machine

# -- prepare ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def prepared(machine: Machine, tmp_path: Path) -> Machine:
    """A machine whose shared memory and page cache are files of the test, and whose root is whoever runs it."""
    (tmp_path / "shm").mkdir()
    (tmp_path / "drop_caches").write_text("")
    machine.files |= {
        "/dev/shm": str(tmp_path / "shm"),
        "/proc/sys/vm/drop_caches": str(tmp_path / "drop_caches"),
        "EUID == 0": f"EUID == {os.geteuid()}",
    }
    machine.program("sync", "#!/bin/sh\n")
    return machine


SCRIPT = text_of(render(one_backend("vllm serve m", image="img")), "/launch.sh")


def test_only_shared_memory_that_nobody_uses_is_cleared(prepared: Machine, tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    for name in ("psm_dead", "sem.mp-dead", "psm_alive", "other"):
        (shm / name).write_text("x" * mmap.PAGESIZE)
    with (shm / "psm_alive").open("r+b") as file, mmap.mmap(file.fileno(), 0):
        done = prepared.run(SCRIPT, "prepare")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in shm.iterdir()) == ["other", "psm_alive"]


def test_the_page_cache_is_dropped_and_a_failure_of_it_is_one_of_the_unit(prepared: Machine, tmp_path: Path) -> None:
    assert prepared.run(SCRIPT, "prepare").returncode == 0
    assert (tmp_path / "drop_caches").read_text() == "3\n"
    (tmp_path / "drop_caches").unlink()
    (tmp_path / "drop_caches").mkdir()
    done = prepared.run(SCRIPT, "prepare")
    assert done.returncode == 1
    assert "drop_caches" in done.stderr


def test_without_root_it_is_refused(prepared: Machine) -> None:
    prepared.files["EUID == 0"] = "EUID == -1"
    done = prepared.run(SCRIPT, "prepare")
    assert done.returncode == 78
    assert "needs root" in done.stderr


def test_a_container_that_was_left_behind_is_removed(prepared: Machine) -> None:
    assert prepared.run(SCRIPT, "prepare").returncode == 0
    calls = [call.arguments for call in prepared.calls("docker")]
    assert calls == [["container", "inspect", "spark-it"], ["rm", "--force", "spark-it"]]
    prepared.program("docker", CALLED + "sys.exit(1)\n")
    assert prepared.run(SCRIPT, "prepare").returncode == 0
    assert len(prepared.calls("docker")) == 1


def test_cuda_memory_of_a_dead_process_asks_for_a_reboot(prepared: Machine) -> None:
    gone = 2**22 + 7  # above the largest pid of Linux
    prepared.program("nvidia-smi", f"#!/bin/sh\necho {os.getpid()}\necho {gone}\necho '[N/A]'\n")
    done = prepared.run(SCRIPT, "prepare")
    assert done.returncode == 78
    assert f"({gone}): reboot this machine first (sudo reboot)" in done.stderr
    prepared.program("nvidia-smi", f"#!/bin/sh\necho {os.getpid()}\n")
    assert prepared.run(SCRIPT, "prepare").returncode == 0


def test_a_driver_that_does_not_answer_is_a_failure_and_not_a_clean_machine(prepared: Machine) -> None:
    prepared.program("nvidia-smi", "#!/bin/sh\nexit 9\n")
    done = prepared.run(SCRIPT, "prepare")
    assert done.returncode == 1
    assert "nvidia-smi does not answer" in done.stderr


ORDERED = text_of(render(fleet()), "/small/launch.sh")  # waits for qwen36, which answers at port 8001


def curl(statuses: str) -> str:
    """A curl that gives these statuses one after the other, the last one for ever."""
    return f"""\
#!/bin/bash
echo "$@" >>"$CALLS.curl"
count=$(wc -l <"$CALLS.curl")
statuses=({statuses})
echo "${{statuses[count - 1]:-${{statuses[-1]}}}}"
"""


def test_an_engine_waits_until_a_bigger_one_that_is_started_answers(prepared: Machine, tmp_path: Path) -> None:
    prepared.program("systemctl", "#!/bin/sh\necho activating\n")
    prepared.program("curl", curl("000 503 200"))
    assert prepared.run(ORDERED, "prepare").returncode == 0
    asked = (tmp_path / "calls.curl").read_text().splitlines()
    assert len(asked) == 3
    assert all(line.endswith("http://127.0.0.1:8001/health") for line in asked)


@pytest.mark.parametrize("state", ["inactive", "failed", "deactivating"])
def test_one_that_is_not_started_is_not_waited_for(prepared: Machine, tmp_path: Path, state: str) -> None:
    prepared.program("systemctl", f"#!/bin/sh\necho {state}\n")
    prepared.program("curl", curl("000"))
    assert prepared.run(ORDERED, "prepare").returncode == 0
    assert not (tmp_path / "calls.curl").exists()


def test_the_wait_ends_with_a_message(prepared: Machine) -> None:
    prepared.program("systemctl", "#!/bin/sh\necho active\n")
    prepared.program("curl", curl("000"))
    done = prepared.run(re.sub(r"SECONDS < \d+", "SECONDS < 0", ORDERED), "prepare")
    assert done.returncode == 1
    assert "spark-qwen36.service loads first, and does not answer" in done.stderr


# -- ready, warm-up, stop ---------------------------------------------------------------------------------------------


def test_the_start_is_over_when_the_engine_answers(machine: Machine, tmp_path: Path) -> None:
    machine.program("curl", curl("000 000 200"))
    assert machine.run(SCRIPT, "ready", environ={"MAINPID": str(os.getpid())}).returncode == 0
    assert len((tmp_path / "calls.curl").read_text().splitlines()) == 3
    assert [call.arguments for call in machine.calls("systemctl")] == [["reset-failed", "spark-it.service"]]


def test_the_wait_for_an_engine_that_has_ended_is_over_at_once(machine: Machine) -> None:
    machine.program("curl", curl("000"))
    done = machine.run(SCRIPT, "ready", environ={"MAINPID": str(2**22 + 7)})
    assert done.returncode == 1
    assert "it ended before it was ready" in done.stderr


def test_the_wait_for_an_engine_that_never_answers_ends(machine: Machine) -> None:
    machine.program("curl", curl("000"))
    done = machine.run(re.sub(r"SECONDS < \d+", "SECONDS < 0", SCRIPT), "ready")
    assert done.returncode == 1
    assert "does not answer after 1800 s" in done.stderr


def test_the_warm_up_is_a_small_chat_with_the_key_out_of_sight(machine: Machine) -> None:
    command = "vllm serve m --served-model-name 'it''s' --api-key ${KEY} --port 8001"
    machine.program("curl", CALLED.replace("sys.argv[1:]", "[*sys.argv[1:], sys.stdin.read()]"))
    text = text_of(render(one_backend(command, image="img")), "/launch.sh")
    assert machine.run(text, "warm-up", environ={"KEY": "s3cret"}).returncode == 0
    (call,) = machine.calls("curl")
    *arguments, stdin = call.arguments
    body = json.loads(arguments[arguments.index("--data") + 1])
    assert (body["model"], body["max_tokens"], arguments[-1]) == ("its", 3, "http://127.0.0.1:8001/v1/chat/completions")
    assert stdin == "Authorization: Bearer s3cret\n"
    assert "s3cret" not in " ".join(arguments)


def test_a_warm_up_that_fails_fails_nothing(machine: Machine) -> None:
    machine.program("curl", "#!/bin/sh\nexit 22\n")
    done = machine.run(SCRIPT, "warm-up")
    assert done.returncode == 0
    assert "the first request will be slow" in done.stderr


def test_a_container_is_stopped_with_time_for_its_requests(machine: Machine) -> None:
    assert machine.run(SCRIPT, "stop").returncode == 0
    assert machine.calls("docker")[-1].arguments == ["stop", "-t", "90", "spark-it"]


def test_a_stop_on_purpose_is_no_failure_in_a_row_and_a_crash_is(machine: Machine) -> None:
    for result, calls in (("success", 1), ("exit-code", 0)):
        assert machine.run(SCRIPT, "clean", environ={"SERVICE_RESULT": result}).returncode == 0
        assert len(machine.calls("systemctl")) == calls
        assert machine.calls("docker")[-1].arguments == ["rm", "--force", "spark-it"]


# -- boot, and the end of an engine ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "parked", "code"), [("starting", True, 1), ("starting", False, 0), ("running", True, 0)]
)
def test_while_the_machine_boots_what_the_mode_leaves_out_is_skipped(
    machine: Machine, tmp_path: Path, system: str, parked: bool, code: int
) -> None:
    machine.files["/var/lib/spark"] = str(tmp_path)
    (tmp_path / "parked").write_text("spark-other\nspark-it\n" if parked else "spark-it-too\n")
    machine.program("systemctl", f"#!/bin/sh\necho {system}\n")
    done = machine.run(SCRIPT, "wanted")
    assert done.returncode == code
    assert ("the mode in force leaves it out" in done.stderr) is bool(code)


@pytest.mark.parametrize("killed", ["docker", "kernel", ""])
def test_an_engine_that_ended_leaves_why_and_its_last_words(machine: Machine, tmp_path: Path, killed: str) -> None:
    machine.files["/var/lib/spark"] = str(tmp_path / "spark")
    (tmp_path / "spark").mkdir()
    state = "true" if killed == "docker" else "false"
    machine.program(
        "docker", f'#!/bin/sh\ncase "$1" in logs) echo "ValueError: mine" ;; container) echo {state} ;; esac\n'
    )
    said = "Out of memory: Killed process 7 (VLLM::EngineCor)" if killed == "kernel" else "nothing of interest"
    machine.program("journalctl", f'#!/bin/sh\necho "{said}"\n')
    failed = {"SERVICE_RESULT": "exit-code", "EXIT_CODE": "exited", "EXIT_STATUS": "137"}
    done = machine.run(SCRIPT, "clean", environ=failed)
    assert done.returncode == 0, done.stderr
    kept = (tmp_path / "spark/spark-it.last").read_text().splitlines()
    assert kept[:2] == ["ValueError: mine", "ended: exit-code, exited 137"]
    why = {"docker": "killed at its limit of memory", "kernel": "Killed process 7", "": ""}[killed]
    assert why in done.stderr
    assert why in kept[-1]
    assert machine.run(SCRIPT, "clean", environ={"SERVICE_RESULT": "success"}).returncode == 0
