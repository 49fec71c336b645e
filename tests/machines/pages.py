"""The commands that the operators' pages show: which are run on the scene's machines, and why the others are not."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("deploy.md", "fleet.md", "operating.md")
_PROGRAMS = ("cd ", "curl ", "docker ", "gateway ", "scp ", "ssh ", "sudo ")  # a block that begins so has commands

# Blocks whose commands a test runs in their order, by their page and how they begin. The name is that of `steps`.
STEPS = {
    "service": ("deploy.md", "sudo git clone"),
    "turns": ("deploy.md", "cd /etc/systemd/system"),
    "container": ("deploy.md", "docker build"),
    "install": ("fleet.md", "gateway fleet render --out"),
    "key": ("fleet.md", "sudo install -d -m 0700 /etc/spark-gateway/ssh"),
    "known hosts": ("fleet.md", "sudo install -m 0600 ./fleet"),
    "start": ("operating.md", "gateway check --live"),
    "replace": ("operating.md", "gateway serve --takeover"),
    "backup": ("operating.md", "sudo gateway backup"),
    "restore": ("operating.md", "sudo systemctl stop spark-gateway\n"),
}
# Run by ops in its home on the gateway's machine, each for itself (test_pages.py).
ALONE = (
    "gateway fleet check",
    "gateway fleet check --config new.yaml --json",
    "gateway fleet plan ds4",
    "gateway fleet plan --config deploy/recipes/two-models.yaml "
    "--set qwen80b.gpu-memory-utilization=0.85 --set qwen4b.gpu-memory-utilization=0.12",
    "gateway fleet plan --models /srv/models --svg plan.svg",
    "gateway fleet plan --live",
    "gateway fleet learn",
    "gateway fleet learn start.log --backend qwen36",
    "gateway fleet pull ds4",
    "gateway fleet pull ds4 --to spark2 --dry-run",
    "gateway fleet render",
    "gateway fleet render --out ./fleet --profile ds4=latency",
    "gateway fleet render --out ./fleet",
    "gateway fleet render --diff",
    "curl -X POST http://127.0.0.1:4000/admin/reload",
    """curl -X POST http://127.0.0.1:4000/admin/reload -H "authorization: Bearer $OPS_KEY" """
    """-H 'content-type: application/json' -d '{"confirm": "open"}'""",
)
OWN = "gateway backup gateway.tar.gz"  # of a gateway that ops has started
_RENDERED = "docker compose -f /usr/local/lib/spark/compose.yaml --env-file /etc/spark/spark-qwen36.env"
NOT_RUN = {
    "sudo git clone URL_OF_THIS_REPOSITORY /opt/spark-gateway": "the tree has the sources",
    "sudo make -C /opt/spark-gateway .venv/.run": "it ran in the tree: the machine has no way out",
    "journalctl -u spark-gateway -f": "it does not end; without -f: test_service.py",
    "docker compose -f deploy/docker-compose.yml up -d --build": "its other images cannot be had here",
    f"{_RENDERED} --profile daily up -d": "no compose on the Sparks; tests/apps/fleet/render checks the file",
    "gateway fleet pull ds4 --revision v1.1 --pin": "a revision is one of the hub, which is not reached",
}


def commands(page: str) -> list[list[str]]:
    """The commands of each block, without their comments; a line that goes on is one."""
    text = (DOCS / page).read_text()
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    found = [one for language, one in fenced if not language and one.startswith(_PROGRAMS)]
    return [
        [re.sub(r" +# .*", "", line) for line in re.sub(r" *\\\n *", " ", one).splitlines() if line] for one in found
    ]


def steps(name: str) -> list[str]:
    """The commands of one block of `STEPS`."""
    page, first = STEPS[name]
    (found,) = [block for block in commands(page) if "\n".join([*block, ""]).startswith(first)]
    return found
