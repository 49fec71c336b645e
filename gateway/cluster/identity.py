"""What a gateway keeps across restarts: its identity, and the number of gateways in the cluster."""

from __future__ import annotations

import logging
import re
import uuid
from pathlib import Path

import msgspec

from gateway.config.sources import read_file, replace_file

log = logging.getLogger("gateway.cluster")

NAME = "shared.json"
READ_MOST = 64 * 1024  # bytes of the file; a longer one was not written by a gateway
GATEWAYS_MOST = 1000
_OWNER = re.compile(r"[\w.-]{1,128}")


class GatewayIdentity(msgspec.Struct):
    """`owner` stays the same across restarts: spending is counted under this name. `gateways`: as last counted, this
    one included."""

    owner: str
    gateways: int = 1


def load_identity(folder: Path) -> GatewayIdentity:
    """The identity stored in the folder `server.data`; a new one where there is none, or it cannot be read."""
    try:
        identity = msgspec.json.decode(read_file(folder / NAME, READ_MOST, patience=0.0), type=GatewayIdentity)
        if _OWNER.fullmatch(identity.owner) and 0 < identity.gateways <= GATEWAYS_MOST:
            return identity
        log.warning("%s is not valid: this gateway counts as a new one", folder / NAME)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        log.warning("%s cannot be read (%s): this gateway counts as a new one", folder / NAME, error)
    return GatewayIdentity(uuid.uuid4().hex)


def save_identity(folder: Path, identity: GatewayIdentity) -> None:
    """Blocks. A failed write is logged and ignored."""
    try:
        replace_file(folder / NAME, msgspec.json.encode(identity))
    except OSError as error:
        log.warning("%s cannot be written: %s", folder / NAME, error)
