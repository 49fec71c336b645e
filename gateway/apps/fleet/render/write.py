"""Writes rendered files below a directory, one folder per node: each whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Literal

from gateway.apps.fleet.render.install import lacking
from gateway.apps.fleet.render.paths import RenderedFile

Written = Literal["new", "changed", "unchanged", "kept"]


def write_file(file: RenderedFile, directory: Path) -> Written:
    """Write one file, and say what that changed. A file whose values are the operator's keeps them, and gets the names
    that it does not have yet. Raises OSError."""
    path = directory / file.place
    try:
        old = path.read_bytes()
    except FileNotFoundError:
        old = None
    text = file.text.encode()
    if old is not None and file.keep:
        names = lacking(file, old.decode(errors="replace"))
        if not names:
            return "kept"
        text = old.rstrip(b"\n") + "\n".join(["", *names, ""]).encode()
    mode = file.mode | stat.S_IWUSR  # a copy of it on the node can be copied over by the next one
    if old == text and stat.S_IMODE(path.stat().st_mode) == mode:
        return "unchanged"
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, text, mode)
    return "new" if old is None else "changed"


def _replace(path: Path, text: bytes, mode: int) -> None:
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(text)
        os.chmod(aside, mode)  # before it has its name: a secret is never open to others
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise
