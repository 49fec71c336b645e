"""Nodes that are folders of this machine: `ssh` runs what it is given with such a folder as its home, `hf` downloads
from a folder, `rsync` and `docker` are as small."""

from __future__ import annotations

import hashlib
import json
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "a" * 40
FILES = {"config.json": b'{"model_type": "x"}', "model-00001-of-00001.safetensors": b"weights" * 1000}

# The last word before the command is the target; the machines' folder is beside this file.
_SSH = """\
#!{python}
import os, subprocess, sys
words = sys.argv[1:]
if "-l" in words:  # as rsync writes it
    user = words.index("-l")
    words[user : user + 3] = [words[user + 1] + "@" + words[user + 2]]
at = next(i for i, word in enumerate(words) if "@" in word)
home = os.path.join({root!r}, words[at].partition("@")[2])
if not os.path.isdir(home):
    sys.exit("ssh: no route to host " + words[at])
open(os.path.join({root!r}, "ssh.log"), "a").write(" ".join(words[at:at + 2]) + "\\n")
command = words[at + 1:]
env = dict(os.environ, HOME=home, HOST=words[at])
sys.exit(subprocess.run(["sh", "-c", " ".join(command)], env=env).returncode)
"""
_HF = """\
#!{python}
import hashlib, os, sys
model, revision, cache = sys.argv[2], sys.argv[4], sys.argv[6]
open(os.path.join({root!r}, "hf.log"), "a").write(os.environ["HOST"] + "\\n")
if os.path.exists(os.path.join({root!r}, "hf.fails")):
    sys.exit("no space left on device")
folder = os.path.join(cache, "models--" + model.replace("/", "--"))
for name in os.listdir({hub!r}):
    content = open(os.path.join({hub!r}, name), "rb").read()
    oid = hashlib.sha256(content).hexdigest()
    os.makedirs(os.path.join(folder, "blobs"), exist_ok=True)
    os.makedirs(os.path.join(folder, "snapshots", revision), exist_ok=True)
    open(os.path.join(folder, "blobs", oid), "wb").write(content)
    link = os.path.join(folder, "snapshots", revision, name)
    os.path.lexists(link) or os.symlink("../../blobs/" + oid, link)
"""
_RSYNC = """\
#!{python}
import os, shutil, sys
source, target = sys.argv[-2:]
login, _, folder = target.partition(":")
open(os.path.join({root!r}, "rsync.log"), "a").write(os.environ["HOST"] + " " + login + "\\n")
for name in sys.stdin.read().split("\\n"):
    if name:
        there = os.path.join(folder, name)
        os.makedirs(os.path.dirname(there), exist_ok=True)
        os.path.lexists(there) and os.remove(there)
        shutil.copy2(os.path.join(source, name), there, follow_symlinks=False)
print("  1,000  50%   10.00MB/s    0:00:01")
"""
_DOCKER = """\
#!{python}
import os, sys
file = os.path.join(os.environ["HOME"], "image")
words = sys.argv[1:]
if words[0] == "image":
    if not os.path.exists(file):
        sys.exit("No such image")
    print(open(file).read(), 1000)
elif words[0] == "pull":
    open(file, "w").write("sha256:1")
    open(os.path.join({root!r}, "pull.log"), "a").write(os.environ["HOST"] + "\\n")
elif words[0] == "save":
    print(open(file).read(), end="")
elif words[0] == "load":
    open(file, "w").write(sys.stdin.read())
"""


def install(root: Path) -> Path:
    """The folder with the programs, for PATH."""
    programs, hub = root / "programs", root / "hub"
    programs.mkdir()
    hub.mkdir()
    for name, content in FILES.items():
        (hub / name).write_bytes(content)
    for name, text in {"ssh": _SSH, "hf": _HF, "rsync": _RSYNC, "docker": _DOCKER}.items():
        path = programs / name
        path.write_text(text.format(python=sys.executable, root=str(root), hub=str(hub)))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return programs


def index() -> dict[str, Any]:
    files = [
        {"rfilename": name, "size": len(content), "lfs": {"sha256": hashlib.sha256(content).hexdigest()}}
        for name, content in FILES.items()
    ]
    return {"sha": COMMIT, "siblings": files}


@contextmanager
def hub_server() -> Iterator[str]:
    """A hub that tells the index of every model at `main` and at its commit, and of no other revision."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.partition("?")[0].endswith(("/revision/main", f"/revision/{COMMIT}"))
            body = json.dumps(index() if found else {"error": "no such revision"}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
