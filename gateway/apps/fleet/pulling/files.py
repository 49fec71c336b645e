"""The files of a model at one revision: what the hub lists of them, and whether they are on this disk as it says.

Runs on the node: standard library only. A cache has the layout of huggingface_hub: `models--ORG--NAME/` with `blobs`,
`snapshots/REVISION` (links to them) and `refs`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

_HUB = "https://huggingface.co"
_MOST_INDEX = 32 * 1024 * 1024
_MOST_FILES = 10_000
_MOST_BYTES = 2**50  # of one file
_CHUNK = 4 * 1024 * 1024
_SECONDS = 60
_REVISION = re.compile(r"[0-9a-f]{40}")

Progress = Callable[[int], None]
"""Told how many bytes are done."""


class Broken(Exception):
    """A step that failed; the message says why, and what to do."""


@dataclass(frozen=True)
class File:
    """`oid`: the SHA-256 of its content, or git's SHA-1 of it (40 digits); empty where nobody has told."""

    name: str
    size: int
    oid: str = ""


@dataclass(frozen=True)
class Index:
    """All files of a repository at one revision (a commit)."""

    revision: str
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def weights(self) -> int:
        """Bytes of the weights that a vLLM loads."""
        return sum(file.size for file in self.files if file.name.endswith(".safetensors"))


def index_of(data: object) -> Index:
    """The index in an answer of the hub, or in what `as_data` made. Raises Broken."""
    try:
        assert isinstance(data, dict)
        files = [_file(one) for one in data["siblings"]]
        revision = str(data["sha"])
        if len(files) > _MOST_FILES or not _REVISION.fullmatch(revision):
            raise ValueError("a revision is no commit, or there are too many files")
        return Index(revision, tuple(files))
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise Broken(f"the hub's list of files cannot be read: {type(error).__name__} {error}"[:200]) from None


def _file(one: dict[str, object]) -> File:
    name, size, lfs = str(one["rfilename"]), one.get("size"), one.get("lfs")
    if name.startswith(("/", "~")) or ".." in name.split("/") or not name.isprintable():
        raise ValueError(f"a file is called {name[:60]!r}")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < _MOST_BYTES:
        raise ValueError(f"{name[:60]} has no size")
    oid = lfs.get("sha256", "") if isinstance(lfs, dict) else one.get("blobId", "")
    return File(name, size, oid if isinstance(oid, str) and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", oid) else "")


def as_data(index: Index) -> dict[str, object]:
    files = [{"rfilename": file.name, "size": file.size, "blobId": file.oid} for file in index.files]
    return {"sha": index.revision, "siblings": files}


def fetch_index(model: str, revision: str) -> Index:
    """What the hub (HF_ENDPOINT) lists of a model, asked with this machine's token where it has one. Raises Broken."""
    base = os.environ.get("HF_ENDPOINT", _HUB).rstrip("/")
    url = f"{base}/api/models/{model}/revision/{urllib.parse.quote(revision, safe='')}?blobs=true"
    headers = {"User-Agent": "spark-gateway"}
    if token := _token():
        headers["Authorization"] = f"Bearer {token}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_SECONDS) as answer:
            return index_of(json.loads(answer.read(_MOST_INDEX)))
    except (OSError, ValueError) as error:
        code = getattr(error, "code", None)
        mend = ": log in there with `hf auth login`, or look at the name" if code in (401, 403, 404) else ""
        raise Broken(f"{model}@{revision} is not told by {base} ({error}){mend}"[:300]) from None


def _token() -> str:
    home = os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface"))
    if token := os.environ.get("HF_TOKEN"):
        return token.strip()
    try:
        with open(os.environ.get("HF_TOKEN_PATH", f"{home}/token"), encoding="utf-8") as file:
            return file.read(4096).strip()
    except (OSError, ValueError):
        return ""


# -- on this disk -----------------------------------------------------------------------------------------------------


def listed(folder: str) -> Index:
    """The files of a folder that is in no cache, without their hashes."""
    files: list[File] = []
    for above, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(above, name)
            files.append(File(os.path.relpath(path, folder), os.stat(path).st_size))
    return Index("0" * 40, tuple(sorted(files[:_MOST_FILES], key=lambda file: file.name)))


def missing(folder: str, index: Index) -> list[File]:
    """The files that are not in a folder, or have another size."""
    return [file for file in index.files if _size(os.path.join(folder, file.name)) != file.size]


def wrong(folder: str, index: Index, progress: Progress) -> list[File]:
    """The files whose content is another one than the index says. Reads them all."""
    found: list[File] = []
    before = 0

    def read(done: int) -> None:
        progress(before + done)

    for file in index.files:
        if file.oid and oid_of(os.path.join(folder, file.name), len(file.oid) == 40, read) != file.oid:
            found.append(file)
        before += file.size
    return found


def oid_of(path: str, of_git: bool, progress: Progress) -> str:
    """The hash of a file: SHA-256, or git's SHA-1 of a blob."""
    found = hashlib.sha1(b"blob %d\0" % os.stat(path).st_size) if of_git else hashlib.sha256()
    done = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
            done += len(chunk)
            progress(done)
    return found.hexdigest()


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def bytes_below(folder: str) -> int:
    """Bytes of all files below a folder, those included that are still being written."""
    return sum(_size(os.path.join(above, name)) or 0 for above, _, names in os.walk(folder) for name in names)
