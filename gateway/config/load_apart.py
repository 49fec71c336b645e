"""Reads routes.yaml in a process that ends, so that the libraries which only that needs (pydantic, ruamel.yaml: about
10 MB) do not stay in the memory of a gateway that serves. It imports them when the file is edited later."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path

from gateway.config.loaded import Loaded
from gateway.config.problems import ConfigError


def load_apart(path: Path) -> Loaded:
    """As `load`. Only for a process without other threads, whose locks a fork could leave held; with any, and where no
    process can be forked, this one reads the file."""
    if threading.active_count() > 1 or not hasattr(os, "fork"):
        return load_here(path)
    try:
        reading, writing = os.pipe()
    except OSError:
        return load_here(path)
    try:
        child = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        return load_here(path)
    if not child:
        _answer(path, writing)
    os.close(writing)
    try:
        with open(reading, "rb") as pipe:
            answer = pipe.read()
    finally:
        os.waitpid(child, 0)
    try:
        found = pickle.loads(answer)
    except (EOFError, pickle.UnpicklingError):  # the child was killed, or failed on a defect
        return load_here(path)
    if isinstance(found, ConfigError):
        raise found
    assert isinstance(found, Loaded)
    return found


def load_here(path: Path) -> Loaded:
    """As `load`, which is imported by the first call."""
    from gateway.config.load import load

    return load(path)


def _answer(path: Path, writing: int) -> None:
    """In the child: write what `load` returns or raises, and end without the exit handlers of the parent."""
    try:
        try:
            found: Loaded | ConfigError = load_here(path)
        except ConfigError as error:
            found = error
        answer = pickle.dumps(found)
        with open(writing, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(0)
