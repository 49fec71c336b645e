"""What lets the gateway start and stop units over ssh: sudoers of the nodes, the drop-in of its own unit, host keys."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.control.unit_commands import KEY, KNOWN_HOSTS, SSH, start_commands, stop_commands
from gateway.apps.fleet.preflight.host import CommandResult
from gateway.apps.fleet.render.files import GATEWAY, OWN_UNIT, compare, write_file
from tests.apps.fleet.render.blocks import fleet, fleets, one_backend, render, text_of
from tests.apps.fleet.render.test_rendering_units import analyze, verify

# One rule: a user, root alone, no password, one program with its arguments. No wildcard, list, alias, or tag.
RULE = re.compile(r"([a-z_][a-z0-9_-]*) ALL=\(root\) NOPASSWD: (/usr/bin/systemctl [a-z-]+(?: --no-block)? [\w.-]+)")
SNAPSHOT = one_backend("vllm serve m --port 1", image="img", ssh="ops@n0")


def rules(text: str) -> list[tuple[str, str]]:
    """(user, command) of every rule. Every other line must be a comment."""
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    found = [RULE.fullmatch(line) for line in lines]
    assert all(found), lines
    return [(match[1], match[2]) for match in found if match]


def test_sudoers_has_what_the_gateway_runs_and_nothing_else() -> None:
    snapshot = fleet()
    allowed = rules(text_of(render(snapshot), "/sudoers.d/spark", "spark1"))
    units = {"spark-qwen36", "spark-small", "spark-ds4", "spark-card", "spark-coder"}
    assert {user for user, _ in allowed} == {"ops"}
    assert {command.split()[-1] for _, command in allowed} == units, "those of this node"
    verbs = {command.split()[1] for _, command in allowed}
    assert verbs == {"start", "stop", "restart", "reset-failed"}
    for backend in snapshot.backends.values():
        for command in (*start_commands(backend, snapshot.nodes), *stop_commands(backend, snapshot.nodes)):
            words = " ".join(command.argv[len(SSH) + 1 :])
            if command.argv[len(SSH)] == "ops@spark1" and not words.startswith("[ -d /var/lib/spark ]"):
                assert words.startswith("sudo ")
                assert ("ops", f"/usr/bin/{words.removeprefix('sudo ')}") in allowed


@given(st.text(st.sampled_from("aZ09._:@-"), min_size=1, max_size=20).filter(lambda name: name[0].isalnum()))
def test_no_name_of_a_backend_says_more_in_sudoers(name: str) -> None:
    snapshot = one_backend("vllm serve m --port 1", image="img", name=name, ssh="ops@n0")
    assert len(rules(text_of(render(snapshot), "/sudoers.d/spark"))) == 5


@pytest.mark.parametrize("ssh", ["n0", "root@n0", None, "a b@n0", "ALL@n0", "%wheel@n0"])
def test_without_a_plain_user_there_are_no_sudoers(ssh: str | None) -> None:
    rendering = render(one_backend("vllm serve m --port 1", image="img", ssh=ssh))
    assert [file.path for file in rendering.files if "sudoers" in file.path] == []


@pytest.mark.skipif(shutil.which("visudo") is None, reason="no visudo here")
@pytest.mark.parametrize("name", fleets())
def test_visudo_takes_it(name: str, tmp_path: Path) -> None:
    for file in render(fleets()[name]).files:
        if "sudoers" in file.path:
            (tmp_path / file.node).write_text(file.text)
            subprocess.run(["visudo", "-cf", str(tmp_path / file.node)], check=True, timeout=20)


# -- the gateway's own machine ----------------------------------------------------------------------------------------


@analyze
@pytest.mark.parametrize("unit", ["spark-gateway", "spark-gateway-next"])
def test_systemd_takes_the_drop_in_beside_the_shipped_unit(unit: str, tmp_path: Path) -> None:
    shipped = Path(__file__).parents[4] / "deploy/spark-gateway.service"
    text = (
        shipped.read_text()
        .replace("/opt/spark-gateway/.venv/bin/gateway", "/bin/true")
        .replace("/bin/kill", "/bin/true")
    )
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    (units / f"{unit}.service").write_text(text)
    for file in render(SNAPSHOT).files:
        if file.node == GATEWAY and f"/{unit}.service.d/" in file.path:
            _write(tmp_path, file.path, file.text)
    assert verify(tmp_path) == (0, "")
    _write(tmp_path, f"/etc/systemd/system/{unit}.service.d/more.conf", "[Service]\nLoadCredential=../x:/y\n")
    assert 'Credential name "../x" not valid' in verify(tmp_path)[1], "it reads the drop-ins"


def _write(root: Path, path: str, text: str) -> None:
    there = root / path.lstrip("/")
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_text(text)


def test_the_drop_in_hands_over_what_ssh_is_told_to_use() -> None:
    text = text_of(render(SNAPSHOT), "/spark-gateway.service.d/fleet-ssh.conf")
    assert re.findall(r"(?m)^LoadCredential=(.*)$", text) == [
        f"{KEY}:/etc/spark-gateway/ssh/id_ed25519", f"{KNOWN_HOSTS}:/etc/spark-gateway/ssh/known_hosts"
    ]  # fmt: skip


def test_where_no_node_is_reached_by_ssh_there_is_nothing_for_the_gateway() -> None:
    rendering = render(one_backend("vllm serve m --port 1", image="img", ssh=None))
    assert [file.path for file in rendering.files if file.node == GATEWAY] == []


def test_host_keys_are_asked_for_and_not_installed(tmp_path: Path) -> None:
    script = tmp_path / "host-keys.sh"
    script.write_text(text_of(render(fleet()), "/host-keys.sh"))
    for name, body in {"ssh-keyscan": 'echo "scanned $*"', "ssh-keygen": 'cat "$2"', "sudo": "exit 9"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["bash", script], env=environ, capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout.startswith("scanned -T 10 -t ed25519 spark1 spark2\n")
    assert "compare these with the consoles of the nodes" in done.stdout
    assert (tmp_path / "known_hosts").read_text() == "scanned -T 10 -t ed25519 spark1 spark2\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="install.sh needs root")
def test_the_drop_in_is_installed_only_when_there_is_what_it_hands_over(tmp_path: Path) -> None:
    for file in render(SNAPSHOT).files:
        write_file(file, tmp_path / "out")
    script = tmp_path / "out" / GATEWAY / "install.sh"
    text = script.read_text().replace("/etc/", f"{tmp_path}/etc/").replace('"$here$2"', f'"$here${{2#{tmp_path}}}"')
    script.write_text(text)
    (tmp_path / "systemctl").write_text("#!/bin/sh\necho systemctl $@\n")
    (tmp_path / "systemctl").chmod(0o755)

    def run() -> subprocess.CompletedProcess[str]:
        environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        return subprocess.run(["bash", script], env=environ, capture_output=True, text=True, check=False, timeout=20)

    refused = run()
    assert refused.returncode == 1
    assert f"{tmp_path}/etc/spark-gateway/ssh/id_ed25519 is missing or empty" in refused.stderr
    drop_in = tmp_path / "etc/systemd/system/spark-gateway.service.d/fleet-ssh.conf"
    assert not drop_in.exists(), "the unit would not start"
    for name in ("id_ed25519", "known_hosts"):
        _write(tmp_path, f"/etc/spark-gateway/ssh/{name}", "x")
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert drop_in.exists()
    assert "systemctl daemon-reload" in done.stdout


def test_a_broken_sudoers_file_is_not_installed(tmp_path: Path) -> None:
    for file in render(SNAPSHOT).files:
        write_file(file, tmp_path)
    assert (tmp_path / "n0/etc/sudoers.d/spark").stat().st_mode & 0o777 == 0o640, "scp can replace its copy"
    text = text_of(render(SNAPSHOT), "/install.sh", "n0")
    assert "\nput_sudoers 0440 /etc/sudoers.d/spark\n" in text
    assert text.index("visudo -cf") < text.index('  put "$1" "$2"')


def test_who_chooses_profiles_has_a_folder_for_that() -> None:
    rendering = render(fleet())
    assert "\ninstall -d --owner=ops --mode=0755 /var/lib/spark\n" in text_of(rendering, "/install.sh", "spark1")
    whoever = '\ninstall -d --owner="${SUDO_USER:-root}" --mode=0755 /var/lib/spark\n'
    assert whoever in text_of(rendering, "/install.sh", "spark2")
    assert "/var/lib/spark" not in text_of(render(SNAPSHOT), "/install.sh", "n0"), "there are no profiles"


def test_the_gateways_files_are_compared_on_its_own_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rendering = render(SNAPSHOT)

    def places() -> list[str]:
        found = compare(rendering, SNAPSHOT.nodes, lambda _: CommandResult(None, error="away"), lambda _: False)
        return [one.file.path for one in found if one.file.node == GATEWAY]

    assert places() == ([] if not Path(OWN_UNIT).exists() else places())
    monkeypatch.setattr("gateway.apps.fleet.render.files.OWN_UNIT", __file__)
    assert [Path(path).name for path in places()] == ["fleet-ssh.conf", "fleet-ssh.conf"]
