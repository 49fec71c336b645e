"""The gateway as a service: what the pages promise of it, and of its data, on a machine with a real systemd."""

from __future__ import annotations

import json
import threading

import pytest

from tests.machines.install import by_ops
from tests.machines.pages import steps
from tests.machines.scene import GATEWAY, chat, http, power, said, states, until

pytestmark = [pytest.mark.usefixtures("fleet"), pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def well(fleet: None) -> None:
    until(lambda: chat("main")[0] == 200, 180, "the fleet serves before the test")


@pytest.mark.parametrize(
    "command",
    ["gateway check", "gateway fleet check", "gateway fleet plan daily", "gateway fleet plan --live",
     "gateway fleet status", "gateway fleet render --diff", "gateway fleet preflight --node spark1",
     "gateway explain main", "gateway top --once", "sudo gateway usage", "gateway fleet switch daily --dry-run",
     "sudo usermod -aG systemd-journal ops", "curl -sf -X POST http://127.0.0.1:4000/admin/reload",
     """curl -sf http://127.0.0.1:4000/admin/explain -H 'content-type: application/json' -d '{"alias": "main"}'"""],
)  # fmt: skip
def test_a_command_of_the_pages_works_for_ops_from_its_home(command: str) -> None:
    told = said("gw", command, 180, user="ops", codes=(0, 1) if "check" in command or "preflight" in command else (0,))
    assert "there is no file" not in told
    assert "Permission denied" not in told


def test_ops_reads_why_a_unit_failed() -> None:
    assert "No entries" not in by_ops("ssh ops@spark1 journalctl -u spark-qwen36 -n 50")


def test_a_service_that_takes_turns_drops_no_request() -> None:
    failed: list[tuple[int, str]] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            if (answer := chat("main"))[0] != 200:
                failed.append(answer)

    asking = [threading.Thread(target=ask) for _ in range(3)]
    for thread in asking:
        thread.start()
    try:
        commands = steps("turns")
        by_ops(" && ".join(command for command in commands if "stop" not in command))
        until(lambda: _listening() == 2, 60, "both listen")
        by_ops("sudo systemctl stop spark-gateway")
        by_ops("sudo systemctl start spark-gateway")
        until(lambda: _listening() == 2, 60, "both listen again")
        by_ops("sudo systemctl stop spark-gateway-next")
    finally:
        stop.set()
        for thread in asking:
            thread.join()
    assert failed == []


def _listening() -> int:
    return (said("gw", "ss -Hltn 'sport = :4000' | wc -l").strip().count("2") and 2) or 1


def test_a_backup_while_it_runs_is_restored_by_the_page() -> None:
    assert chat("main")[0] == 200
    until(lambda: "main" in by_ops("sudo gateway usage --by alias"), 30, "the ledger is written")
    before = _requests()
    assert before > 0
    by_ops("sudo rm -rf /var/backups/gateway.tar.gz && sudo gateway backup /var/backups/gateway.tar.gz")
    for command in steps("restore"):
        by_ops(command)
    until(lambda: http(f"{GATEWAY}/health")[0] == 200, 60, "the restored service answers")
    assert _requests() >= before, "the ledger is back, and the service may use it"
    assert chat("main")[0] == 200
    until(lambda: _requests() > before, 30, "it writes on")
    by_ops("sudo rm -rf /var/lib/private/spark-gateway.old")


def _requests() -> int:
    usage = json.loads(by_ops("sudo gateway usage --by alias --json"))["usage"]
    return sum(int(row["requests"]) for row in usage)


@pytest.mark.parametrize("order", [("gw", "spark1", "spark2"), ("spark2", "spark1", "gw")], ids=" ".join)
def test_after_a_power_cut_all_come_back_in_any_order(order: tuple[str, ...]) -> None:
    """The units are enabled as install.sh proposes. Nobody does anything by hand."""
    by_ops("ssh ops@spark1 'echo ops | sudo -S -p : systemctl enable -q spark-qwen36 spark-small'")
    by_ops("ssh ops@spark2 'echo ops | sudo -S -p : systemctl enable -q spark-gemma4'")
    for machine in order:
        power("off", machine)
    for machine in order:
        power("boot", machine)
    daily = ("qwen36", "gemma4", "small")
    until(lambda: all(states().get(name) in ("ready", "busy") for name in daily), 300, "the daily mode serves again")
    assert chat("main") == (200, "qwen36")
