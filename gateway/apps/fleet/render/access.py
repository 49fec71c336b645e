"""What the gateway needs to start and stop the rendered units over ssh: on each node the sudoers of its user, on the
gateway's own machine a drop-in for its unit, which hands it a key and the known hosts."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from gateway.apps.fleet.render.install import gateway_install_file
from gateway.apps.fleet.render.paths import GATEWAY, HOST_KEYS, INSTALLER, MARK, SUDOERS, UNITS, RenderedFile
from gateway.config.snapshot import Node
from gateway.fleet.ssh import KEY, KNOWN_HOSTS

OWN_UNITS = ("spark-gateway", "spark-gateway-next")  # they take turns (docs/deploy.md)
_FOLDER = "/etc/spark-gateway/ssh"
KEY_FILE, HOSTS_FILE = f"{_FOLDER}/id_ed25519", f"{_FOLDER}/known_hosts"
# Each with every option as the gateway writes it: sudo compares the words.
VERBS = ("start --no-block", "start", "stop", "restart", "reset-failed")

_DROP_IN = """\
# {mark}. Edits here are lost.
# The user of this unit has no home, and cannot read the files of root: systemd hands them over, for this unit alone.
# `gateway fleet switch`, `start`, `stop` and the preflight then call ssh with -i and UserKnownHostsFile= of these.
[Service]
LoadCredential={key}:{key_file}
LoadCredential={hosts}:{hosts_file}
"""

_HOST_KEYS = """\
#!/bin/bash
# {mark}. Asks the nodes for their host keys, and installs nothing: who answers may be anybody.
# Compare each fingerprint with the one on the node's own console:
#   ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub
# and install the file only if all are the same:
#   sudo install -D --mode=0600 known_hosts {hosts_file}
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# As ssh looks it up: the name behind HostName in ~/.ssh/config is not known to the gateway's unit.
ssh-keyscan -T 10 -t ed25519 {hosts} >"$here/known_hosts"
ssh-keygen -lf "$here/known_hosts"
echo "compare these with the consoles of the nodes, then: sudo install -D --mode=0600 $here/known_hosts {hosts_file}"
"""


def sudoers_file(node: str, user: str, units: Iterable[str]) -> RenderedFile:
    """What the ssh user may do as root without a password: start and stop these units, and nothing else. A unit's name
    has no character that sudoers reads as anything but itself."""
    lines = [
        f"# {MARK} for {node}. Edits here are lost: change routes.yaml.",
        f"# What the gateway runs over ssh as {user}: these words and no others.",
        *(f"{user} ALL=(root) NOPASSWD: /usr/bin/systemctl {verb} {unit}" for unit in units for verb in VERBS),
    ]
    return RenderedFile(node, SUDOERS, "\n".join(lines) + "\n", 0o440)


def gateway_files(nodes: Iterable[Node]) -> Iterator[RenderedFile]:
    """The files for the machine of the gateway; none where it reaches no node by ssh."""
    hosts = list(dict.fromkeys(host_of(node.ssh) for node in nodes if node.ssh and not node.ssh.startswith("-")))
    if not hosts:
        return
    values = {
        "{mark}": MARK,
        "{key}": KEY,
        "{key_file}": KEY_FILE,
        "{hosts}": KNOWN_HOSTS,
        "{hosts_file}": HOSTS_FILE,
    }
    drop_ins = [
        RenderedFile(GATEWAY, f"{UNITS}/{unit}.service.d/fleet-ssh.conf", _filled(_DROP_IN, values), 0o644)
        for unit in OWN_UNITS
    ]
    yield from drop_ins
    scanned = {**values, "{hosts}": " ".join(map(shlex.quote, hosts))}
    yield RenderedFile(GATEWAY, HOST_KEYS, _filled(_HOST_KEYS, scanned), 0o755)
    yield RenderedFile(GATEWAY, INSTALLER, gateway_install_file(drop_ins, KEY_FILE, HOSTS_FILE), 0o755)


def host_of(target: str) -> str:
    """The host in a node's `ssh`: `spark1` of `ops@spark1`."""
    return target.rpartition("@")[2]


def _filled(text: str, values: dict[str, str]) -> str:
    for key, value in values.items():
        text = text.replace(key, value)
    return text
