"""Commands of the operators' pages that no other test needs, typed as they stand there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.machines.install import by_ops
from tests.machines.pages import ALONE, DOCS, OWN, steps
from tests.machines.scene import chat, said, until

pytestmark = [pytest.mark.usefixtures("fleet"), pytest.mark.timeout(600)]
MISTAKES = ("there is no file", "Traceback", "not found")
CHAT = '{"model": "small", "messages": [{"role": "user", "content": "hi"}]}'
OWN_FILE = """\
server: {listen: "127.0.0.1:4001", data: ./state}
backends: {small: {url: "http://10.77.0.11:8005"}}
"""


@pytest.fixture(scope="module", autouse=True)
def home(fleet: None) -> Iterator[None]:
    """What the commands name, in the home of ops."""
    (two,) = [
        one for one in re.findall(r"```yaml\n(.*?)```", (DOCS / "fleet.md").read_text(), re.S) if "qwen80b:" in one
    ]
    for folder, name, file in (("deploy/recipes", "two-models", two), ("own", "routes", OWN_FILE)):
        by_ops(f"mkdir -p {folder} && printf %s {shlex.quote(file)} >{folder}/{name}.yaml")
    said("gw", "mkdir -p /srv/models")
    by_ops("cp /etc/spark-gateway/routes.yaml new.yaml; ssh ops@spark1 journalctl -u spark-qwen36 -n 50 >start.log")
    until(lambda: chat("main")[0] == 200, 180, "the fleet serves")
    yield
    by_ops("gateway fleet render --out ./fleet; rm -rf deploy own new.yaml start.log plan.svg")


@pytest.mark.parametrize("command", ALONE)
def test_a_command_does_what_it_is_shown_for(command: str) -> None:
    told = said("gw", command, 240, user="ops", codes=(0, 1))
    assert not [word for word in MISTAKES if word in told], told
    denied = [line for line in told.splitlines() if "Permission denied" in line]
    assert [line for line in denied if "cannot be kept for the plan" not in line] == []


def test_a_gateway_of_ones_own_is_started_replaced_and_backed_up() -> None:
    check, serve = steps("start")
    takeover, end = steps("replace")
    count = "[ $(ss -Hltn 'sport = :4001' | wc -l) = {} ]"
    waits = "for n in $(seq 300); do {} && break; sleep 0.2; done; {}"
    lines = [
        "cd own",
        "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT",
        check,
        f"{serve} >one.log 2>&1 & one=$!",
        waits.format(*[count.format(1)] * 2),
        f"curl -sf http://127.0.0.1:4001/v1/chat/completions -H 'content-type: application/json' -d '{CHAT}'",
        f"{takeover.removesuffix(' &')} >two.log 2>&1 & two=$!",
        waits.format(*[count.format(2)] * 2),
        end.replace("OLD_PID", "$one"),
        "wait $one",
        "curl -sf http://127.0.0.1:4001/health",
        OWN,
        "tar -tzf gateway.tar.gz | grep usage.db",
        "kill -TERM $two",
        "wait $two",
    ]
    said("gw", "set -e\n" + "\n".join(lines), 240, user="ops")
