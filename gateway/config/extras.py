"""What an engine needs beyond what serving needs."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

INSTALL_CLOUD = "pip install --require-hashes -r requirements-cloud.lock (with make: make run CLOUD=1)"
CLOUD_MISSING = "engine litellm needs the extra 'cloud' (the litellm SDK), which is not installed"


def lacks_cloud(engines: Iterable[str]) -> bool:
    """Whether one of these engines needs the extra `cloud`, and it is not installed. Imports nothing of it."""
    return "litellm" in engines and find_spec("litellm") is None
