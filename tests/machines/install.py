"""Installs gateway and fleet on the scene's machines by the commands of the pages, word for word."""

from __future__ import annotations

import re
import shutil

from tests.machines.pages import NOT_RUN, steps
from tests.machines.scene import HERE, MACHINES, http, on, said, until


def by_ops(command: str, within: float = 180.0) -> str:
    """Typed by the operator at the gateway's machine. A password that ssh -t would ask for is piped."""
    typed = re.sub(r"ssh -t (\S+) sudo ", r"echo ops | ssh \1 sudo -S -p : ", command)
    return said("gw", typed, within, user="ops")


def install() -> None:
    _service()
    _fleet()


def _service() -> None:
    for command in steps("service"):
        if command not in NOT_RUN:
            by_ops(command)
        if "routes.yaml" in command:
            shutil.copy(HERE / "routes.yaml", MACHINES / "m/gw/etc/spark-gateway/routes.yaml")
    until(lambda: http("http://10.77.0.2:4000/health")[0] == 200, 60, "the service answers")


def _fleet() -> None:
    """docs/fleet.md, its parts Installing and Access for the gateway."""
    for command in steps("install"):
        for node in ("spark1", "spark2"):
            if "sudoedit" in command:
                on("spark1", "sed -i 's/^HF_TOKEN=.*/HF_TOKEN=hf_fake/' /etc/spark/spark-qwen36.env")
            elif node == "spark1" or ("spark1" in command and "qwen36" not in command):
                by_ops(command.replace("spark1", node))
    for command in steps("key"):
        by_ops(command)
    key = (MACHINES / "m/gw/etc/spark-gateway/ssh/id_ed25519.pub").read_text()
    for node in ("spark1", "spark2"):
        said(node, f"echo '{key.strip()}' >>~ops/.ssh/authorized_keys")
    for command in steps("known hosts"):
        by_ops(command)
    until(lambda: http("http://10.77.0.2:4000/health")[0] == 200, 60, "the service answers")
    by_ops("gateway fleet switch daily", 300)
