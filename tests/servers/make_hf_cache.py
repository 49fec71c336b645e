"""A cache of Hugging Face with copies of one model under several names.

usage: make_hf_cache.py MODEL HF_HOME NAME...
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import sys
from pathlib import Path


def index(weights: Path) -> str:
    """The index of a model in one file of weights: without it no server takes the folder for a model."""
    with weights.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        head = json.loads(file.read(length))
    names = {key: weights.name for key in head if key != "__metadata__"}
    return json.dumps({"metadata": {"total_size": 0}, "weight_map": names})


def sha(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


def add(model: Path, hub: Path, name: str) -> None:
    repository = hub / ("models--" + name.replace("/", "--"))
    snapshot, blobs = repository / "snapshots" / sha(name), repository / "blobs"
    for folder in (snapshot, blobs, repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(sha(name))
    for file in model.iterdir():
        shutil.copy(file, blobs / sha(file.name))
        (snapshot / file.name).symlink_to(Path("../../blobs") / sha(file.name))
    (snapshot / "model.safetensors.index.json").write_text(index(model / "model.safetensors"))


def main(model: str, home: str, *names: str) -> None:
    for name in names:
        add(Path(model), Path(home) / "hub", name)


if __name__ == "__main__":
    main(*sys.argv[1:])
