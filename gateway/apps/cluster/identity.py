"""The facts that a gateway keeps across restarts: its identity, and the number of gateways in the cluster."""

from __future__ import annotations

import logging
import re
import uuid
from pathlib import Path

import msgspec

from gateway.config.sources import keep, read_kept

log = logging.getLogger("gateway.cluster")

NAME = "shared.json"
GATEWAYS_MOST = 1000
_OWNER = re.compile(r"[\w.-]{1,128}")


class GatewayIdentity(msgspec.Struct):
    """`owner` stays the same across restarts: spending is counted under this name. `gateways`: as last counted, this
    one included."""

    owner: str
    gateways: int = 1


def load_identity(folder: Path) -> GatewayIdentity:
    """The identity stored in the folder `server.data`; a new one where there is none, or it cannot be read."""
    new = "this gateway counts as a new one"
    identity = read_kept(folder / NAME, GatewayIdentity, log, new)
    if identity is not None:
        if _OWNER.fullmatch(identity.owner) and 0 < identity.gateways <= GATEWAYS_MOST:
            return identity
        log.warning("%s is not valid: %s", folder / NAME, new)
    return GatewayIdentity(uuid.uuid4().hex)


def save_identity(folder: Path, identity: GatewayIdentity) -> None:
    """Blocks. A write that fails is logged and ignored."""
    keep(folder / NAME, identity, log)
