"""One step of a pull on a node: look, download, verify, copy to another node, or the same for an image.

Runs on the node: standard library only. `main` is what `python3 -` runs there. It writes lines that begin with MARK:
progress, and at the end the result or why there is none.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.apps.fleet.preflight.checks_weights import cache_of, free_bytes, outside_path
from gateway.apps.fleet.preflight.host import Host, expected_backend, gib
from gateway.apps.fleet.pulling.files import (
    Broken,
    as_data,
    bytes_below,
    fetch_index,
    index_of,
    listed,
    missing,
    wrong,
)

MARK = "spark-gateway-pull: "
_EVERY = 2.0  # seconds between two reports
_SPARE = 5 * 1024**3  # bytes of disk that stay free
_SSH = "ssh -o BatchMode=yes -o StrictHostKeyChecking=yes -o ConnectTimeout=10"
Report = Callable[[int, int], None]  # bytes done, of how many


def main(argument: str) -> None:
    job = json.loads(argument)
    said = 0.0

    def report(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= _EVERY:
            said = time.monotonic()
            _say({"done": done, "total": total})

    try:
        result = STEPS[job["step"]](job, report)
    except Broken as problem:
        result = {"problem": str(problem)}
    except Exception as error:
        result = {"problem": f"{type(error).__name__}: {error}"[:300]}
    _say({"result": result})


def _say(what: Mapping[str, Any]) -> None:
    sys.stdout.write(MARK + json.dumps(what) + "\n")
    sys.stdout.flush()


# -- weights ----------------------------------------------------------------------------------------------------------


def _look(job: Mapping[str, Any], _: Report) -> dict[str, Any]:
    """Where the model belongs on this node, how much of it is there, and the room on its disk. `index`: as the first
    node has told it; none = it is asked for here."""
    root, folder = _places(job)
    index = index_of(job["index"]) if job.get("index") else _index(job, folder)
    files = _snapshot(folder, index.revision) if job["is_repository"] else folder
    left = sum(file.size for file in missing(files, index)) if index is not None else 0
    part = bytes_below(f"{folder}/blobs") if job["is_repository"] and left else 0
    return {
        "root": root,
        "folder": folder,
        "files": files,
        "index": as_data(index),
        "size": index.size,
        "left": left,
        "needed": max(0, left - part),
        "free": free_bytes(root, Host()),
    }


def _index(job: Mapping[str, Any], folder: str) -> Any:
    if job["is_repository"]:
        return fetch_index(job["model"], job["revision"])
    if not os.path.isfile(f"{folder}/config.json"):
        raise Broken(f"{folder} has no config.json: the launch names a folder, and no repository to fetch it from")
    return listed(folder)


def _places(job: Mapping[str, Any]) -> tuple[str, str]:
    """(the folder of the cache, the folder of the model), as the node has them."""
    backend = expected_backend(job["backend"])
    inside = cache_of(backend) if job["is_repository"] else job["model"]
    outside, problem = outside_path(backend, inside, Host())
    if outside is None:
        raise Broken(f"{job['model']}: {problem}")
    if not job["is_repository"]:
        return os.path.dirname(outside), outside
    return outside, f"{outside}/models--{job['model'].replace('/', '--')}"


def _snapshot(folder: str, revision: str) -> str:
    return f"{folder}/snapshots/{revision}"


def _download(job: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Fetch what is missing with huggingface_hub, this node's or the image's; it goes on where it was broken off."""
    index = index_of(job["index"])
    free = free_bytes(job["root"], Host())
    if free is not None and free - _SPARE < job["needed"]:
        lacks = f"{gib(job['needed'])} are missing, and {gib(free)} of disk are free at {job['root']}"
        raise Broken(f"{lacks}: make room, or use --to")
    os.makedirs(job["root"], exist_ok=True)
    words = ["download", job["model"], "--revision", index.revision, "--cache-dir"]
    tool = next((name for name in ("hf", "huggingface-cli") if shutil.which(name)), None)
    local = os.path.expanduser("~/.local/bin/hf")
    if tool is None and os.path.exists(local):
        tool = local
    if tool is not None:
        argv = [tool, *words, job["root"]]
    elif job.get("image") and shutil.which("docker"):
        argv = ["docker", "run", "--rm", "-e", "HF_TOKEN", "-v", f"{job['root']}:/hub", "--entrypoint", "hf"]
        argv += [job["image"], *words, "/hub"]
    else:
        raise Broken("neither `hf` nor an image with it is here: pip install huggingface_hub (or pipx), as this user")
    _run(argv, lambda: report(min(bytes_below(f"{job['folder']}/blobs"), index.size), index.size))
    _name_main(job["folder"], index.revision, job["revision"])
    left = missing(_snapshot(job["folder"], index.revision), index)
    if left:
        raise Broken(f"{left[0].name} and {len(left) - 1} more are still missing after the download: run it again")
    return {}


def _name_main(folder: str, revision: str, asked: str) -> None:
    """The engine asks for `main`, or for the name that the launch gives: it is to find this revision."""
    if asked == revision or "/" in asked or not asked:
        return
    os.makedirs(f"{folder}/refs", exist_ok=True)
    with open(f"{folder}/refs/{asked}", "w", encoding="utf-8") as file:
        file.write(revision)


def _verify(job: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Sizes and, where asked, hashes of all files against the index."""
    index = index_of(job["index"])
    left = missing(job["files"], index)
    if not left and job["hashes"]:
        left = wrong(job["files"], index, lambda done: report(done, index.size))
        for file in left:  # a broken one would never be fetched again
            path = os.path.realpath(os.path.join(job["files"], file.name))
            os.replace(path, f"{path}.broken")
    if left:
        others = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise Broken(f"{left[0].name}{others} are not as the index says: run it again")
    config = ""
    if os.path.isfile(f"{job['files']}/config.json"):
        with open(f"{job['files']}/config.json", encoding="utf-8", errors="replace") as text:
            config = text.read(1024 * 1024)
    return {"config": config, "weights": index.weights}


def _copy(job: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Send the model to another node: rsync, which goes on where it was broken off."""
    if shutil.which("rsync") is None:
        raise Broken("rsync is not installed on this node: sudo apt-get install rsync")
    source, wanted = job["folder"], _wanted(job)
    remote = f"mkdir -p {shlex.quote(job['to_folder'])} && rsync"
    argv = ["rsync", "-a", "--partial", "--files-from=-", "--info=progress2", "--no-inc-recursive", "-e", _SSH]
    argv += [f"--rsync-path={remote}", f"{source}/", f"{job['target']}:{job['to_folder']}/"]
    total = job["size"]

    def on_line(line: str) -> None:
        done, percent = [*line.split(), "", ""][:2]
        if percent.endswith("%") and done.replace(",", "").isdigit():
            report(int(done.replace(",", "")), total)

    _run(argv, lambda: None, "\n".join(wanted) + "\n", on_line)
    return {}


def _wanted(job: Mapping[str, Any]) -> list[str]:
    """The files to send, below the model's folder: of a cache the revision's links, what they lead to, and its
    names."""
    index = index_of(job["index"])
    if not job["is_repository"]:
        return [file.name for file in index.files]
    folder, found = job["folder"], []
    for file in index.files:
        path = f"{job['files']}/{file.name}"
        found.append(os.path.relpath(path, folder))
        if os.path.islink(path):
            found.append(os.path.relpath(os.path.realpath(path), os.path.realpath(folder)))
    refs = f"{folder}/refs"
    found += [f"refs/{name}" for name in os.listdir(refs)] if os.path.isdir(refs) else []
    return list(dict.fromkeys(found))


# -- images -----------------------------------------------------------------------------------------------------------


def _image(job: Mapping[str, Any], _: Report) -> dict[str, Any]:
    """The id and size of an image; empty where it is not here."""
    ran = subprocess.run(
        ["docker", "image", "inspect", "--format", "{{.Id}} {{.Size}}", "--", job["image"]],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    words = ran.stdout.split()
    return {"id": words[0], "size": int(words[1])} if ran.returncode == 0 and len(words) == 2 else {"id": "", "size": 0}


def _pull_image(job: Mapping[str, Any], report: Report) -> dict[str, Any]:
    _run(["docker", "pull", job["image"]], lambda: report(0, 0))
    return _image(job, report)


def _send_image(job: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """`docker save | ssh docker load`, counted on its way."""
    save = subprocess.Popen(["docker", "save", "--", job["image"]], stdout=subprocess.PIPE)
    load = subprocess.Popen(
        [*shlex.split(_SSH), "--", job["target"], "docker", "load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert save.stdout is not None
    assert load.stdin is not None
    done = 0
    try:
        while chunk := save.stdout.read(4 * 1024 * 1024):
            load.stdin.write(chunk)
            done += len(chunk)
            report(done, job["size"])
        load.stdin.close()
    except OSError:
        pass
    finally:
        save.kill() if load.poll() is not None else None
    if save.wait() != 0 or load.wait() != 0:
        raise Broken(f"docker save | ssh {job['target']} docker load ended with {save.returncode}, {load.returncode}")
    return {}


# -- commands ---------------------------------------------------------------------------------------------------------


def _run(
    argv: Sequence[str],
    each: Callable[[], None],
    text: str = "",
    on_line: Callable[[str], None] = lambda line: None,
) -> None:
    """Run a command to its end. `each` is called every second, `on_line` with each line that it writes. Raises
    Broken."""
    with tempfile.TemporaryFile() as given:
        given.write(text.encode())
        given.seek(0)
        process = subprocess.Popen(list(argv), stdin=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    last = [""]

    def read() -> None:
        line = b""
        while byte := process.stdout.read(1) if process.stdout is not None else b"":
            if byte in b"\r\n" or len(line) > 4096:
                last[0] = line.decode(errors="replace").strip() or last[0]
                on_line(last[0])
                line = b""
            else:
                line += byte

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while process.poll() is None:
            each()
            time.sleep(0.2)
        reader.join(5)
    finally:
        process.kill()
    if process.returncode != 0:
        raise Broken(f"{os.path.basename(argv[0])} ended with {process.returncode}: {last[0][:200]}")


STEPS: Mapping[str, Callable[[Mapping[str, Any], Report], dict[str, Any]]] = {
    "look": _look,
    "download": _download,
    "verify": _verify,
    "copy": _copy,
    "image": _image,
    "pull image": _pull_image,
    "send image": _send_image,
}
