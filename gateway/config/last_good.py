"""The last good version of routes.yaml, in `server.data`: what a restart serves when the file itself has a mistake."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from gateway.config.load import LoadedFile, load_text
from gateway.config.problems import ConfigError
from gateway.config.setting import settings_of
from gateway.config.snapshot import Server
from gateway.config.sources import read_file, replace_file

log = logging.getLogger("gateway.config")

NAME = "last-good.yaml"
_HEAD = "# The last good version of "
_DATA = re.compile(r"""\bdata:\s*(?:"([^"\n]+)"|'([^'\n]+)'|((?:\$\{[^}\s]*\}|[^\s"',}#])+))""")


def keep_last_good(path: Path, text: str, data: Path) -> None:
    """Keep the text of the file at `path`, for its owner alone. Blocks."""
    file = data / NAME
    whole = f"{_HEAD}{path.absolute()}\n{text}".encode()
    try:
        if file.read_bytes() == whole:
            return
    except OSError:
        pass
    try:
        replace_file(file, whole)
    except OSError as error:
        log.warning("%s cannot be written (%s): a restart with a broken file will not serve it", file, error)


def last_good(path: Path) -> LoadedFile | None:
    """The last good version of the file at `path`, which has a mistake; None where none is kept, or it is good no
    longer (a variable that is not set any more). Blocks."""
    for folder in _folders(path):
        try:
            head, _, text = read_file(folder / NAME).decode().partition("\n")
            if head == f"{_HEAD}{path.absolute()}":
                return load_text(text, str(path))
        except (OSError, ValueError, ConfigError):
            continue
    return None


def _folders(path: Path) -> list[Path]:
    """Where `server.data` may be: as the broken file seems to say, else its default."""
    try:
        text = read_file(path).decode(errors="replace")
    except (OSError, ValueError):
        text = ""
    said = [next(filter(None, found)) for found in _DATA.findall(text)]
    return [Path(os.path.expandvars(name)) for name in [*said[:10], settings_of(Server)["data"].default]]
