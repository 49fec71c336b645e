"""Installs gateway and fleet on the scene's machines by the commands of the pages, word for word."""

from __future__ import annotations

import re
import shutil

from tests.machines.scene import HERE, MACHINES, ROOT, http, on, said, until

# Commands of a page that are not run as they stand there, and why.
INSTEAD = {
    "sudo git clone URL_OF_THIS_REPOSITORY /opt/spark-gateway": "the tree has the sources",
    "sudo make -C /opt/spark-gateway .venv/.run": "it ran in the tree: the machine has no way out",
    "journalctl -u spark-gateway -f": "it does not end",
}


def block(page: str, first: str) -> list[str]:
    """The commands of the block of a page that begins with this word, without their comments."""
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S)
    (found,) = [one for one in blocks if one.startswith(first)]
    return [re.sub(r" +# .*", "", line) for line in found.splitlines() if line]


def by_ops(command: str, within: float = 180.0) -> str:
    """Typed by the operator at the gateway's machine. A password that ssh -t would ask for is piped."""
    typed = re.sub(r"ssh -t (\S+) sudo ", r"echo ops | ssh \1 sudo -S -p : ", command)
    return said("gw", typed, within, user="ops")


def install() -> None:
    _service()
    _fleet()


def _service() -> None:
    for command in block("deploy.md", "sudo git clone"):
        if command not in INSTEAD:
            by_ops(command)
        if "routes.yaml" in command:
            shutil.copy(HERE / "routes.yaml", MACHINES / "m/gw/etc/spark-gateway/routes.yaml")
    until(lambda: http("http://10.77.0.2:4000/health")[0] == 200, 60, "the service answers")


def _fleet() -> None:
    """docs/fleet.md, its parts Installing and Access for the gateway."""
    for command in block("fleet.md", "gateway fleet render --out"):
        for node in ("spark1", "spark2"):
            if "sudoedit" in command:
                on("spark1", "sed -i 's/^HF_TOKEN=.*/HF_TOKEN=hf_fake/' /etc/spark/spark-qwen36.env")
            elif "enable --now" not in command and (node == "spark1" or "spark1" in command):
                by_ops(command.replace("spark1", node))
    for command in block("fleet.md", "sudo install -d -m 0700 /etc/spark-gateway/ssh"):
        by_ops(command)
    key = (MACHINES / "m/gw/etc/spark-gateway/ssh/id_ed25519.pub").read_text()
    for node in ("spark1", "spark2"):
        said(node, f"echo '{key.strip()}' >>~ops/.ssh/authorized_keys")
    for command in block("fleet.md", "sudo install -m 0600 ./fleet"):
        by_ops(command)
    until(lambda: http("http://10.77.0.2:4000/health")[0] == 200, 60, "the service answers")
    by_ops("gateway fleet switch daily", 300)
