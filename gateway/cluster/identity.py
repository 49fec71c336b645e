"""What a gateway remembers over its restarts: who it is, and how many gateways there were."""

from __future__ import annotations

import logging
import re
import uuid
from pathlib import Path

import msgspec

from gateway.config.sources import read_file

log = logging.getLogger("gateway.cluster")

NAME = "shared.json"
READ_MOST = 64 * 1024  # bytes of it: what is longer is not ours
GATEWAYS_MOST = 1000
_OWNER = re.compile(r"[\w.-]{1,128}")


class Memory(msgspec.Struct):
    """`owner` stays the same over restarts: what it has spent is counted under this name. `gateways`: as last seen,
    itself included."""

    owner: str
    gateways: int = 1


def recall(folder: Path) -> Memory:
    """What was remembered in the folder `server.data`; of nothing, or what cannot be read, a new beginning."""
    try:
        memory = msgspec.json.decode(read_file(folder / NAME, READ_MOST, patience=0.0), type=Memory)
        if _OWNER.fullmatch(memory.owner) and 0 < memory.gateways <= GATEWAYS_MOST:
            return memory
        log.warning("%s holds what no gateway remembers: this gateway counts as a new one", folder / NAME)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        log.warning("%s cannot be read (%s): this gateway counts as a new one", folder / NAME, error)
    return Memory(uuid.uuid4().hex)


def remember(folder: Path, memory: Memory) -> None:
    """Blocks. What cannot be written is said and left."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / (NAME + ".part")
        part.write_bytes(msgspec.json.encode(memory))
        part.replace(folder / NAME)
    except OSError as error:
        log.warning("%s cannot be written: %s", folder / NAME, error)
