"""Connections, machines and engines that break in the middle of an operation: what is told, and the way on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.machines.asking import trickle
from tests.machines.install import by_ops
from tests.machines.scene import DOCKER, GATEWAY, MACHINES, chat, http, on, operation, power, said, states, typed, until

pytestmark = [pytest.mark.usefixtures("daily"), pytest.mark.timeout(900)]
KEY = "/etc/ssh/ssh_host_ed25519_key"


def order(node: str, served: str, words: str) -> None:
    """What the engine of this name does from its next start on (fakes/vllm)."""
    (MACHINES / f"m/{node}/srv/models/.fake/{served}").write_text(f"{words}\n")


def step(what: str, backend: str) -> dict[str, Any]:
    """A step of it; empty where it has none."""
    found = (one for one in operation()["steps"] if (one["what"], one["backend"]) == (what, backend))
    return next(found, {})


def activity(node: str, unit: str) -> str:
    return said(node, f"systemctl is-active {unit}", codes=(0, 3)).strip()


@contextmanager
def ordered(command: str) -> Iterator[subprocess.Popen[str]]:
    """A command of ops that runs meanwhile; its output is both streams."""
    words = typed("gw", f"{command} 2>&1", "ops")
    process = subprocess.Popen(words, env=DOCKER, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()  # su has a session of its own: the command goes on following, and holds the pipe
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def dropped(node: str, port: int) -> Iterator[None]:
    """No packet to or from this port of the node arrives, and nobody is told."""
    rules = [
        f"{chain} -p tcp --{end}port {port} -j DROP"
        for chain, end in (("INPUT", "d"), ("OUTPUT", "s"), ("FORWARD", "d"), ("FORWARD", "s"))
    ]
    said(node, "; ".join(f"iptables -I {rule}" for rule in rules))
    try:
        yield
    finally:
        said(node, "; ".join(f"iptables -D {rule}" for rule in rules))


# -- connections ------------------------------------------------------------------------------------------------------


def test_an_ssh_that_is_cut_in_the_middle_of_a_stop_ends_and_its_unit_is_looked_at() -> None:
    order("spark1", "small", "slow 12")
    by_ops("gateway fleet restart small", 300)
    with ordered("gateway fleet stop small") as stopping:
        until(lambda: activity("spark1", "spark-small") == "deactivating", 60, "the stop is under way")
        with dropped("spark1", 22):
            is_there = "pgrep -f 'systemctl stop spark-small'"
            seconds = until(lambda: on("gw", is_there).returncode != 0, 60, "the ssh that was cut has ended")
        told, _ = stopping.communicate(timeout=120)
        assert stopping.returncode == 0, told
    assert seconds < 30 + 5  # pgrep itself takes its time on a loaded machine
    output = step("stop", "small")["output"]
    assert "ssh was cut" in output
    assert "inactive" in output, "what has come of it is seen, not supposed"
    by_ops("gateway fleet start small", 300)


def test_a_host_key_that_has_changed_is_told_as_changed_and_the_command_mends_it() -> None:
    before, now = (f"ssh-keygen -lf {path}.pub" for path in (f"{KEY}.before", KEY))
    said("spark2", f"mv {KEY} {KEY}.before; mv {KEY}.pub {KEY}.before.pub; ssh-keygen -q -t ed25519 -N '' -f {KEY}")
    said("spark2", "systemctl restart ssh")
    prints = [said("spark2", line).split()[1] for line in (before, now)]
    install = "sudo install -m 0600 ./fleet/_gateway/known_hosts /etc/spark-gateway/ssh/known_hosts"
    mends = [f"./fleet/_gateway/host-keys.sh && {install}", "sudo systemctl restart spark-gateway"]
    try:
        told = said("gw", "gateway fleet stop gemma4", 120, "ops", codes=(1,))
        assert "the host key of spark2 has changed" in told
        assert all(one in told for one in prints)
        assert mends[0] in told
        told = said("gw", "gateway fleet preflight --node spark2", 120, "ops", codes=(1,))
        assert "the host key of spark2 has changed" in told
        assert "ssh-keygen -R spark2" in told
        for mend in mends:
            by_ops(mend)
        until(
            lambda: "fake vllm" in on("gw", "gateway fleet logs gemma4", user="ops").stdout, 60, "the node is reached"
        )
    finally:
        said("spark2", f"mv {KEY}.before {KEY}; mv {KEY}.before.pub {KEY}.pub; systemctl restart ssh")
        for mend in mends:
            by_ops(mend)
        until(lambda: http(f"{GATEWAY}/health")[0] == 200, 60, "the gateway is back")


@pytest.mark.parametrize("what", ["DROP", "REJECT"])
def test_an_engine_whose_packets_are_lost_is_left_soon_and_comes_back(tmp_path: Path, what: str) -> None:
    rule = "-p tcp --dport 8001 -j " + what
    chains = ("INPUT", "FORWARD")  # FORWARD: docker leads the packets to the container
    with trickle(tmp_path, "main") as asked:
        until(lambda: asked.so_far() >= 6, 30, "requests flow")
        said("spark1", "; ".join(f"iptables -I {chain} {rule}" for chain in chains))
        seconds = until(lambda: chat("main")[1] == "gemma4", 40, "the next step serves")
        until(lambda: states()["qwen36"] == "down", 60, "it is known to be down")
        said("spark1", "; ".join(f"iptables -D {chain} {rule}" for chain in chains))
        until(lambda: chat("main") == (200, "qwen36"), 120, "it is used again")
    assert [row for row in asked.failed() if not str(row["end"]).startswith("broken, told")] == []
    assert seconds < (15 if what == "REJECT" else 30)


# -- starts -----------------------------------------------------------------------------------------------------------


def test_an_engine_that_dies_at_its_start_is_told_at_its_first_death_in_its_own_words() -> None:
    order("spark1", "small", "die 2")
    with ordered("gateway fleet restart small") as starting:
        until(lambda: "it died at its start" in step("wait", "small").get("output", ""), 60, "the first death is told")
        first = step("wait", "small")["output"]
        assert "RuntimeError: Engine core initialization failed" in first
        told, _ = starting.communicate(timeout=200)
        assert starting.returncode == 1, told
    assert "(2 times)" in told, "it is not waited for for ever"
    on("spark1", "rm /srv/models/.fake/small")
    by_ops("gateway fleet start small", 300)


def test_flags_that_an_engine_does_not_take_end_its_start_at_once() -> None:
    order("spark1", "small", "exit2")
    told = said("gw", "gateway fleet restart small", 120, "ops", codes=(1,))
    assert "exit code 2" in told
    assert "argument --foo: invalid choice" in told


def test_a_start_that_hangs_shows_signs_of_life_and_can_be_cancelled() -> None:
    order("spark1", "small", "hang")
    with ordered("gateway fleet restart small") as starting:
        until(lambda: "activating" in step("wait", "small").get("sign", ""), 60, "how its unit is")
        refused = said("gw", "gateway fleet start coder", 60, "ops", codes=(1,))
        assert "`wait small`" in refused
        assert "gateway fleet cancel" in refused
        by_ops("gateway fleet cancel")
        told, _ = starting.communicate(timeout=60)
        assert starting.returncode == 1, told
    by_ops("gateway fleet stop small", 200)
    assert activity("spark1", "spark-small") in ("inactive", "failed")


def test_an_engine_that_somebody_stops_while_its_start_is_waited_for_is_noticed() -> None:
    order("spark1", "small", "hang")
    with ordered("gateway fleet restart small") as starting:
        until(lambda: "activating" in step("wait", "small").get("sign", ""), 60, "it is waited for")
        said("spark1", "systemctl stop spark-small")
        told, _ = starting.communicate(timeout=60)
        assert starting.returncode == 1, told
    assert "systemd starts it no more" in told or "the unit is inactive" in told


def test_an_engine_that_was_started_by_hand_is_waited_for() -> None:
    """Its own port, memory and unit are no obstacles to it."""
    by_ops("gateway fleet stop small", 200)
    order("spark1", "small", "cold 8")
    said("spark1", "systemctl start --no-block spark-small")
    told = by_ops("gateway fleet switch daily", 200)
    assert "loads already" in told
    assert "failed" not in told


def test_a_node_on_which_its_unit_may_not_be_started_is_refused_with_what_to_install() -> None:
    rights, unit = "/etc/sudoers.d/spark", "/etc/systemd/system/spark-small.service"
    by_ops("gateway fleet stop small", 200)
    for file in (rights, unit):
        said("spark1", f"mv {file} /srv/away && systemctl daemon-reload")
        try:
            told = said("gw", "gateway fleet start small", 120, "ops", codes=(1,))
            assert "install.sh" in told, file
            assert step("start", "small").get("state") in ("skipped", None), "nothing was begun"
        finally:
            said("spark1", f"mv /srv/away {file} && systemctl daemon-reload")
    by_ops("gateway fleet start small", 200)


def test_an_engine_that_is_killed_at_its_limit_of_memory_says_so() -> None:
    order("spark2", "coder", "eat")
    try:
        told = said("gw", "gateway fleet start coder", 200, "ops", codes=(1,))
        assert "137" in told
        assert "out of memory: the container was killed at its limit of memory" in told
        assert "--memory" in told, "the command that mends it"
    finally:
        on("spark2", "rm /srv/models/.fake/coder")
        by_ops("gateway fleet stop coder", 200)


# -- machines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_enabled", [False, True], ids=["started by hand", "enabled"])
def test_a_spark_that_loses_power_in_mid_switch_loads_nothing_outside_the_mode(is_enabled: bool) -> None:
    """The target's own unit loads at boot where it is enabled, as install.sh proposes, and the switch goes on; else it
    ends soon, and the mode before can be served again."""
    said("spark1", "systemctl enable -q spark-qwen36 spark-small")
    said("spark1", f"systemctl {'enable' if is_enabled else 'disable'} -q spark-ds4")
    for node in ("spark1", "spark2"):
        order(node, "deepseek-v4-flash", "cold 20")
    with ordered("gateway fleet switch ds4") as switching:
        until(lambda: step("wait", "ds4").get("state") == "running", 120, "ds4 loads")
        power("off", "spark1")
        power("boot", "spark1")
        told, _ = switching.communicate(timeout=240)
        assert switching.returncode == (0 if is_enabled else 1), told
    assert is_enabled or "inactive on spark1" in told
    for unit in ("spark-qwen36", "spark-small"):
        assert activity("spark1", unit) in ("inactive", "failed"), "it is outside the mode in force"
    by_ops("gateway fleet switch daily", 400)
    assert [activity(node, "spark-ds4") in ("inactive", "failed") for node in ("spark1", "spark2")] == [True, True]
