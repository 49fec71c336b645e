"""The systemd units: what systemd itself says of them, the order of starts, limits, names, and what the notes say."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.control.memory.model_catalog import shipped_models
from gateway.apps.control.memory.plan import weights_gib
from gateway.config.load import load_text
from gateway.config.snapshot import Backend, Launch, Mode, Node, Snapshot
from gateway.launch.command import parse
from tests.apps.fleet.render.blocks import fleet, fleets, messages, one_backend, render, text_of

GIB = 1024**3


def setting(unit: str, name: str) -> list[str]:
    """The values of a setting of a unit."""
    return re.findall(rf"^{name}=(.*)$", unit, re.M)


def seconds(unit: str, name: str) -> int:
    return int(setting(unit, name)[0])


# -- systemd ----------------------------------------------------------------------------------------------------------

SYSTEMD = Path("/usr/lib/systemd/system")
analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None or not SYSTEMD.exists(), reason="no systemd-analyze here"
)


def verify(root: Path) -> tuple[int, str]:
    """What systemd says of the units that are installed below `root`, where docker's unit is a stand-in."""
    units = root / "etc/systemd/system"
    base = root / str(SYSTEMD).lstrip("/")
    if not base.exists():
        shutil.copytree(SYSTEMD, base, symlinks=True, ignore_dangling_symlinks=True)
    for program in ("bin/true", "bin/sh"):
        (root / program).parent.mkdir(exist_ok=True)
        shutil.copy(f"/{program}", root / program)
    (units / "docker.service").write_text("[Service]\nExecStart=/bin/true\n")
    names = [f"/etc/systemd/system/{path.name}" for path in units.glob("spark-*.service")]
    command = ["systemd-analyze", f"--root={root}", "--recursive-errors=no", "verify", *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def install(snapshot: Snapshot, node: str, root: Path) -> None:
    for file in render(snapshot).files:
        if file.node == node and file.path != "/install.sh":
            path = root / file.path.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text)
            path.chmod(file.mode)


FLEETS = fleets()


@analyze
@pytest.mark.parametrize(("name", "node"), [(name, node) for name, found in FLEETS.items() for node in found.nodes])
def test_systemd_has_nothing_to_say_of_the_units(name: str, node: str, tmp_path: Path) -> None:
    install(FLEETS[name], node, tmp_path)
    assert verify(tmp_path) == (0, "")


@analyze
def test_systemd_takes_a_model_and_a_backend_with_odd_names(tmp_path: Path) -> None:
    snapshot = one_backend("vllm serve '50%n of $HOME it''s' --port 1", image="img", name="a:b@c.1", ssh="u-1@h")
    install(snapshot, "n0", tmp_path)
    assert verify(tmp_path) == (0, "")
    unit = text_of(render(snapshot), "/spark-a-b-c.1.service")
    assert setting(unit, "Description") == ["a:b@c.1: 50%%n of $HOME its"]


@analyze
@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda unit: unit.replace("Restart=on-failure", "Restart=often"), "often"),
        (lambda unit: unit.replace("launch.sh run", "launch-090.sh run"), "launch-090.sh"),
        (lambda unit: unit.replace("TimeoutStartSec=", "TimeoutStartSecs="), "TimeoutStartSecs"),
    ],
)
def test_a_unit_with_a_mistake_would_be_noticed(damage: object, complaint: str, tmp_path: Path) -> None:
    assert callable(damage)
    install(one_backend("vllm serve m", image="img"), "n0", tmp_path)
    unit = tmp_path / "etc/systemd/system/spark-it.service"
    unit.write_text(damage(unit.read_text()))
    code, said = verify(tmp_path)
    assert complaint in said
    assert (code, said) != (0, "")


def test_every_path_that_a_unit_names_is_rendered() -> None:
    rendering = render(fleet())
    for file in rendering.files:
        if not file.path.endswith(".service"):
            continue
        named = re.findall(r"(?m)^(?:Exec\w+|EnvironmentFile)=[+-]?(/\S+)", file.text)
        paths = {other.path: other.mode for other in rendering.files if other.node == file.node}
        assert set(named) <= set(paths), file.place
        assert all(paths[path] & 0o100 for path in named if path.endswith(".sh"))


def test_every_step_that_a_unit_names_is_one_of_its_script() -> None:
    rendering = render(fleet())
    for file in rendering.files:
        if file.path.endswith(".service"):
            for path, step in re.findall(r"(?m)^Exec\w+=[+-]?(/\S+) (\S+)$", file.text):
                script = next(other for other in rendering.files if other.node == file.node and other.path == path)
                assert f"  {step}) " in script.text


# -- failures and time ------------------------------------------------------------------------------------------------


def test_what_no_restart_mends_is_not_started_again_and_the_rest_four_times() -> None:
    unit = text_of(render(one_backend("vllm serve m", image="img")), ".service")
    assert setting(unit, "Restart") == ["on-failure"]
    assert setting(unit, "RestartSec") == ["30"]
    assert setting(unit, "RestartPreventExitStatus") == ["2 78 126 127"]
    assert setting(unit, "StartLimitBurst") == ["4"]


@given(st.one_of(st.none(), st.integers(GIB, 200 * GIB)), st.integers(1, 3))
def test_the_start_limit_holds_however_long_each_start_takes(resident: int | None, nodes: int) -> None:
    unit = text_of(render(one_backend("vllm serve m", image="img", resident=resident, nodes=nodes)), ".service", "n0")
    each = seconds(unit, "TimeoutStartSec") + seconds(unit, "RestartSec")
    assert seconds(unit, "StartLimitIntervalSec") > (seconds(unit, "StartLimitBurst") - 1) * each


@given(st.integers(GIB, 200 * GIB), st.integers(GIB, 200 * GIB))
def test_a_bigger_engine_has_more_time_to_start_and_two_nodes_more_than_one(one: int, other: int) -> None:
    def timeout(resident: int, nodes: int = 1) -> int:
        snapshot = one_backend("vllm serve m", image="img", resident=resident, nodes=nodes)
        return seconds(text_of(render(snapshot), ".service", "n0"), "TimeoutStartSec")

    assert timeout(min(one, other)) <= timeout(max(one, other))
    assert timeout(one) < timeout(one, nodes=2)


def test_the_times_that_operators_measured_fit() -> None:
    """Up to 15 minutes for 75 GB of weights, up to 10 for 76 GB on each of two nodes."""

    def timeout(resident: int | None, nodes: int = 1) -> int:
        snapshot = one_backend("vllm serve m", image="img", resident=resident, nodes=nodes)
        return seconds(text_of(render(snapshot), ".service", "n0"), "TimeoutStartSec")

    assert timeout(75 * GIB) > 900
    assert timeout(76 * GIB, nodes=2) > 1200
    assert timeout(None) >= 1800
    assert timeout(None, nodes=2) > timeout(None)


def test_without_a_measured_residency_the_weights_decide_how_long_a_start_may_take() -> None:
    snapshot = one_backend("vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", image="img")
    known = weights_gib(snapshot, shipped_models())
    unit = text_of(render(snapshot, weights=known), ".service", "n0")
    assert known == {"it": pytest.approx(74.9, abs=0.1)}
    assert seconds(unit, "TimeoutStartSec") == seconds(timed(75 * GIB), "TimeoutStartSec")
    assert weights_gib(one_backend("vllm serve m", image="img"), shipped_models()) == {}


def timed(resident: int) -> str:
    return text_of(render(one_backend("vllm serve m", image="img", resident=resident)), ".service", "n0")


def test_the_script_gives_up_before_systemd_does() -> None:
    rendering = render(fleet())
    for file in rendering.files:
        if file.path.endswith(".service"):
            script = file.path.removeprefix("/etc/systemd/system/spark-").removesuffix(".service") + "/launch.sh"
            bounds = [int(b) for b in re.findall(r"SECONDS < (\d+)", text_of(rendering, f"/{script}", file.node))]
            assert all(bound < seconds(file.text, "TimeoutStartSec") for bound in bounds), file.place


def test_docker_kills_the_container_before_systemd_kills_docker() -> None:
    rendering = render(one_backend("vllm serve m", image="img"))
    (grace,) = re.findall(r"docker stop -t (\d+)", text_of(rendering, "/launch.sh"))
    assert int(grace) < seconds(text_of(rendering, ".service"), "TimeoutStopSec")


# -- who runs it ------------------------------------------------------------------------------------------------------


def test_the_privileged_step_is_run_as_root_whoever_runs_the_engine() -> None:
    for image in (None, "img"):
        unit = text_of(render(one_backend("vllm serve m", image=image, ssh="milo@n0")), ".service")
        assert setting(unit, "ExecStartPre") == ["+/usr/local/lib/spark/it/launch.sh prepare"]
        assert setting(unit, "User") == ([] if image else ["milo"])


def test_an_engine_of_the_host_needs_no_docker() -> None:
    unit = text_of(render(one_backend("vllm serve m", ssh="milo@n0")), ".service")
    assert "docker" not in unit
    assert setting(unit, "LimitMEMLOCK") == ["infinity"]
    assert setting(unit, "LimitSTACK") == ["67108864"]
    assert setting(unit, "ExecStop") == []


def test_an_engine_of_the_host_whose_user_is_not_known_runs_as_root_and_that_is_said() -> None:
    rendering = render(one_backend("vllm serve m", ssh="n0"))
    assert setting(text_of(rendering, ".service"), "User") == []
    assert "nodes.n0.ssh: names no user, so spark-it runs as root on the host" in messages(rendering)


def test_a_worker_answers_nowhere_so_nothing_waits_for_it() -> None:
    rendering = render(one_backend("vllm serve m", image="img", nodes=2))
    head, worker = (text_of(rendering, ".service", node) for node in ("n0", "n1"))
    assert [line.rpartition(" ")[2] for line in setting(head, "ExecStartPost")] == ["ready", "warm-up"]
    assert setting(worker, "ExecStartPost") == []


def test_a_warm_up_is_sent_only_to_what_chats() -> None:
    for command in ("vllm serve m --runner pooling", "./asr --port 8765"):
        unit = text_of(
            render(one_backend(command, image="vllm/vllm-openai:v1" if "vllm" in command else None)), ".service"
        )
        assert not any("warm-up" in line for line in setting(unit, "ExecStartPost")), command


def test_values_of_references_come_from_a_file_that_only_root_reads() -> None:
    snapshot = one_backend("vllm serve m --api-key ${KEY}", image="${IMG:-img}", env={"HF_TOKEN": "${HF_TOKEN}"})
    rendering = render(snapshot)
    assert setting(text_of(rendering, ".service"), "EnvironmentFile") == ["/etc/spark/spark-it.env"]
    file = next(file for file in rendering.files if file.keep)
    assert (file.path, file.mode) == ("/etc/spark/spark-it.env", 0o600)
    assert [line for line in file.text.splitlines() if not line.startswith("#")] == ["IMG=", "KEY=", "HF_TOKEN="]
    assert not any(f.keep for f in render(one_backend("vllm serve m", image="img")).files)


# -- order ------------------------------------------------------------------------------------------------------------


def after(unit: str) -> list[str]:
    return [name for name in setting(unit, "After")[0].split() if name.startswith("spark-")]


def on_one_node(shares: dict[str, float], modes: dict[str, tuple[str, ...]] | None = None) -> Snapshot:
    node = Node("n", address="10.0.0.1")
    backends = {}
    for i, (name, share) in enumerate(shares.items()):
        command = f"vllm serve m --port {8000 + i} --gpu-memory-utilization {share}"
        launch = Launch("img", command, parsed=parse(command, image="img"))
        backends[name] = Backend(name, nodes=("n",), launch=launch)
    found = {name: Mode(name, members) for name, members in (modes or {}).items()}
    return Snapshot(backends, {}, nodes={"n": node}, modes=found)


@given(st.dictionaries(st.sampled_from("abcdefg"), st.floats(0.05, 0.95).map(lambda x: round(x, 2)), min_size=1))
def test_the_biggest_starts_first_and_no_two_wait_for_each_other(shares: dict[str, float]) -> None:
    rendering = render(on_one_node(shares))
    waits = {name: after(text_of(rendering, f"/spark-{name}.service")) for name in shares}
    for name, before in waits.items():
        found = [unit.removeprefix("spark-").removesuffix(".service") for unit in before]
        assert all(shares[other] >= shares[name] for other in found)
        assert all(f"spark-{name}.service" not in waits[other] for other in found)
    assert sorted(len(before) for before in waits.values()) == list(range(len(shares)))


def test_an_engine_waits_for_those_it_runs_beside_and_no_others() -> None:
    modes = {"daily": ("big", "small"), "alone": ("huge",)}
    rendering = render(on_one_node({"small": 0.1, "huge": 0.9, "big": 0.5, "free": 0.05}, modes))
    assert after(text_of(rendering, "/spark-small.service")) == ["spark-big.service"]
    assert after(text_of(rendering, "/spark-big.service")) == []
    assert len(after(text_of(rendering, "/spark-free.service"))) == 3
    script = text_of(rendering, "/small/launch.sh")
    assert re.findall(r"^  wait_for .*$", script, re.M) == ["  wait_for spark-big.service http://127.0.0.1:8002/health"]


def test_beside_a_worker_an_engine_waits_for_the_head() -> None:
    routes = """\
nodes: {a: {address: 10.0.0.1}, b: {address: "fd00::2"}, c: {address: "fd00::3"}}
backends:
  two: {node: [c, b], launch: {image: i, command: vllm serve m --port 8009 --gpu-memory-utilization 0.6}}
  one: {node: b, launch: {image: i, command: vllm serve m --gpu-memory-utilization 0.2}}
aliases: {x: [one]}
"""
    script = text_of(render(load_text(routes, "routes.yaml", {}).snapshot), "/one/launch.sh")
    assert "wait_for spark-two.service 'http://[fd00::3]:8009/health'" in script


def test_a_share_that_is_not_written_is_that_of_vllm() -> None:
    snapshot = on_one_node({"half": 0.5, "default": 0.1})
    command = "vllm serve m --port 8001"
    launch = Launch("img", command, parsed=parse(command, image="img"))
    default = replace(snapshot.backends["default"], launch=launch)
    snapshot = replace(snapshot, backends={**snapshot.backends, "default": default})
    assert after(text_of(render(snapshot), "/spark-half.service")) == ["spark-default.service"]


def test_what_always_runs_is_started_with_the_machine() -> None:
    rendering = render(fleet())
    last = text_of(rendering, "/install.sh", "spark1").splitlines()[-1]
    assert "sudo systemctl enable spark-qwen36.service spark-small.service spark-ds4.service" in last
    without = render(replace(fleet(), modes={}))
    assert "spark-ds4" not in text_of(without, "/install.sh", "spark1").splitlines()[-1]
