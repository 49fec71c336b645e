"""The rendered files, and where they are installed on a node."""

from __future__ import annotations

from dataclasses import dataclass

MARK = "Rendered by gateway fleet render"
UNITS = "/etc/systemd/system"
SCRIPTS = "/usr/local/lib/spark"
COMPOSE = f"{SCRIPTS}/compose.yaml"
SUDOERS = "/etc/sudoers.d/spark"
INSTALLER = "/install.sh"  # installs the others
HOST_KEYS = "/host-keys.sh"  # asks the nodes for their host keys
NOT_INSTALLED = (INSTALLER, HOST_KEYS)
OWN_UNIT = f"{UNITS}/spark-gateway.service"  # the gateway's
GATEWAY = "_gateway"  # the folder for the gateway's own machine; no node can have this name


def unit_path(name: str) -> str:
    return f"{UNITS}/{name}.service"


def script_path(name: str) -> str:
    """The launch script: /usr/local/lib/spark/<backend>/launch.sh."""
    return f"{SCRIPTS}/{name.removeprefix('spark-')}/launch.sh"


def env_path(name: str) -> str:
    """The values of `${NAME}`, mode 0600. Written once, and from then on the operator's."""
    return f"/etc/spark/{name}.env"


@dataclass(frozen=True, slots=True)
class RenderedFile:
    """One file of a node. `path`: where it is installed there. `keep`: an existing one is never overwritten, because
    the values in it are the operator's."""

    node: str
    path: str
    text: str
    mode: int
    keep: bool = False

    @property
    def place(self) -> str:
        """Its path below the directory that `--out` names: the node's name, then the path on the node."""
        return self.node + self.path

    def lacking(self, existing: str) -> list[str]:
        """The `NAME=` lines of an EnvironmentFile whose names an existing file does not have."""
        names = {line.partition("=")[0] for line in existing.splitlines()}
        wanted = [line for line in self.text.splitlines() if not line.startswith("#")]
        return [line for line in wanted if line.partition("=")[0] not in names]
