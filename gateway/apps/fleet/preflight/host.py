"""What is expected of a node, the node as the checks see it (its files below a root, the commands it answers, what it
serves), and their results.

Runs on the node: standard library only. Everything is bounded (bytes, entries, seconds) and nothing raises.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import selectors
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

Verdict = Literal["ok", "warn", "fail", "unknown"]
GIB = 1024**3
CONTAINER_HOME = "/root"  # of the user of vLLM's images: where caches are that no variable places elsewhere


@dataclass(frozen=True)
class HostCheck:
    """The result of one check. `seen`: in words. `mend`: the command that mends it, None where there is nothing to
    mend. `backend`: whose start it concerns, None for the node's. `fact`: a value that has to be the same on all nodes
    of an engine (the driver's version, the image's id)."""

    check: str
    verdict: Verdict
    seen: str
    mend: str | None = None
    backend: str | None = None
    fact: str | None = None


def _with(verdict: Verdict) -> Callable[..., HostCheck]:
    def made(seen: str, mend: str | None = None, backend: str | None = None, fact: str | None = None) -> HostCheck:
        return HostCheck("", verdict, seen, mend, backend, fact)

    return made


# What a check yields; who runs it puts in its name.
ok, warn, fail, unknown = (_with(verdict) for verdict in get_args(Verdict))


@dataclass(frozen=True)
class ExpectedBackend:
    """What a backend's launch needs on the node.

    `port`: of the host. `models`: what is loaded (the model first, then the draft model), as the command names it.
    `env`: the settings that the checks read, no secrets. `nodes`: how many nodes it spans. `worker`: it runs here
    without an API. `unit`: the systemd unit that would start it; `by_unit`: the gateway starts it so. `weights`: bytes
    of its models on one node, as far as they are known."""

    name: str
    port: int | None = None
    master_port: int | None = None
    utilization: float | None = None
    image: str | None = None
    program: str | None = None
    models: tuple[str, ...] = ()
    served: str | None = None
    volumes: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 1
    worker: bool = False
    unit: str | None = None
    by_unit: bool = False
    weights: int | None = None


@dataclass(frozen=True)
class ExpectedNode:
    """A node as routes.yaml describes it. `memory` in bytes. `user`: of the gateway's ssh, empty = not known."""

    name: str
    memory: int | None = None
    exporter: str | None = None
    backends: tuple[ExpectedBackend, ...] = ()
    user: str = ""


def expected_backend(data: Mapping[str, Any]) -> ExpectedBackend:
    """The reverse of `dataclasses.asdict`, after a trip through JSON."""
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return ExpectedBackend(**values)


def expected_node(data: Mapping[str, Any]) -> ExpectedNode:
    return ExpectedNode(**{**data, "backends": tuple(map(expected_backend, data["backends"]))})


def gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


MOST_BYTES = 256 * 1024  # of one file, one command's output, one answer
MOST_ENTRIES = 20_000  # of one directory
PATIENCE = 10.0  # seconds for one command


class CommandResult(NamedTuple):
    """How a command ended. `code`: None if it could not be started, or did not end in time."""

    code: int | None
    out: str = ""
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def why(self) -> str:
        """The last line of the output, for a command that failed."""
        stated = (self.error.strip() or self.out.strip()).splitlines()
        return "".join(c if c.isprintable() else "?" for c in stated[-1][:300]) if stated else f"exit code {self.code}"


def run_bounded(
    argv: Sequence[str], timeout: float = PATIENCE, text: str = "", most: int = MOST_BYTES
) -> CommandResult:
    """Run a command with `text` as its input: it is killed after `timeout` seconds or `most` bytes of output."""
    try:
        with tempfile.TemporaryFile() as given:
            given.write(text.encode())
            given.seek(0)
            process = subprocess.Popen(
                list(argv),
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C"},
            )
    except FileNotFoundError:
        return CommandResult(None, error=f"{argv[0]} is not installed")
    except (OSError, ValueError) as error:
        return CommandResult(None, error=f"{argv[0]} cannot be run: {error}")
    return _outcome(process, argv[0], timeout, most)


def _outcome(process: subprocess.Popen[bytes], name: str, timeout: float, most: int) -> CommandResult:
    assert process.stdout is not None
    assert process.stderr is not None
    streams = {process.stdout: bytearray(), process.stderr: bytearray()}
    problem = _fill_until_end(streams, time.monotonic() + timeout, most)
    if not problem:
        try:
            process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            problem = "it closed its output and did not end"
    if problem:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that hangs in a driver cannot be killed
            process.wait(timeout=0.5)
    for stream in streams:
        stream.close()
    out, error = (bytes(found).decode(errors="replace") for found in streams.values())
    return CommandResult(None, out, f"{name}: {problem}") if problem else CommandResult(process.returncode, out, error)


def _fill_until_end(streams: dict[Any, bytearray], deadline: float, most: int) -> str | None:
    """Fill the buffers until all streams have ended; a text says why that did not happen."""
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return "no answer in time"
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, 65536)
                streams[key.fileobj] += chunk
                if not chunk:
                    selector.unregister(key.fileobj)
                if sum(map(len, streams.values())) > most:
                    return f"more than {most} bytes of output"
    return None


def fetch_bounded(url: str) -> str | None:
    """The first bytes of the answer at a URL, also of an error; None when nothing answers."""
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=3.0) as reply:
            found: bytes = reply.read(MOST_BYTES)
            return found.decode(errors="replace")
    except urllib.error.HTTPError as error:
        return f"status {error.code}"
    except (OSError, ValueError, http.client.HTTPException):
        return None


@dataclass(frozen=True)
class Process:
    """`command`: its command line, or its name in brackets' stead where it has none."""

    pid: int
    parent: int
    command: str

    @property
    def engine_part(self) -> bool:
        """Whether it is one of the processes that a vLLM starts: VLLM::Worker_TP0, VLLM::EngineCore."""
        return self.command.startswith("VLLM::")

    @property
    def engine(self) -> bool:
        """Whether it is a vLLM itself, the process that has the API and starts the others."""
        return not self.engine_part and re.search(r"(^|[/ ])vllm serve |vllm\.entrypoints", self.command) is not None


@dataclass
class Host:
    """`root`: the directory that stands for `/`. `run` and `fetch` are as `run_bounded` and `fetch_bounded`."""

    root: str = "/"
    run: Callable[[Sequence[str]], CommandResult] = run_bounded
    fetch: Callable[[str], str | None] = fetch_bounded
    home: str = field(default_factory=lambda: os.path.expanduser("~"))

    def path(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))

    def text(self, path: str) -> str | None:
        """The file's text; None when it is not there or cannot be read."""
        try:
            with open(self.path(path), "rb") as file:
                return file.read(MOST_BYTES).decode(errors="replace")
        except OSError:
            return None

    def names(self, path: str) -> list[str] | None:
        """The names in a directory, sorted; None when it is not there or cannot be read."""
        try:
            with os.scandir(self.path(path)) as entries:
                return sorted(entry.name for entry, _ in zip(entries, range(MOST_ENTRIES), strict=False))
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        return os.path.exists(self.path(path))

    def size(self, path: str) -> int | None:
        try:
            return os.stat(self.path(path)).st_size
        except OSError:
            return None

    def link(self, path: str) -> str:
        try:
            return os.readlink(self.path(path))
        except OSError:
            return ""

    def sees_all_processes(self) -> bool:
        """False inside a container, and where /proc hides the processes of others."""
        return self.exists("/proc/1") and not self.exists("/.dockerenv") and not self.exists("/run/.containerenv")

    def processes(self) -> Iterator[Process]:
        for name in self.names("/proc") or ():
            if not name.isdigit():
                continue
            line = (self.text(f"/proc/{name}/cmdline") or "").replace("\0", " ").strip()
            status = self.text(f"/proc/{name}/status") or ""
            parent = re.search(r"^PPid:\s*(\d+)", status, re.M)
            title = re.search(r"^Name:\s*(.*)", status, re.M)
            yield Process(int(name), int(parent[1]) if parent else 0, line or (title[1] if title else ""))

    def smi(self, *query: str) -> CommandResult:
        return self.run(["nvidia-smi", *query])

    def own(self, backend: ExpectedBackend) -> str:
        """How the backend's own unit or container runs, in words; empty where neither does. While its engine loads,
        what it holds is its own."""
        if backend.unit is None:
            return ""
        show = ["systemctl", "show", "--no-pager", "--property=ActiveState,SubState", "--", backend.unit]
        found = dict(line.partition("=")[::2] for line in self.run(show).out.splitlines())
        state, sub = found.get("ActiveState", ""), found.get("SubState", "")
        if state in ("active", "activating", "reloading", "deactivating") and not sub.startswith("auto-restart"):
            return f"its unit is {state}"
        name = backend.unit.removesuffix(".service")
        names = self.run(["docker", "ps", "--format", "{{.Names}}"]).out.split()
        return f"its container {name} runs" if name in names else ""

    def runs(self, backend: ExpectedBackend) -> bool:
        """Whether the backend's engine answers already: `/v1/models` names its model, or asks for a key."""
        if backend.port is None or backend.worker:
            return False
        answer = self.fetch(f"http://127.0.0.1:{backend.port}/v1/models") or ""
        names = (backend.served, *backend.models[:1])
        return answer == "status 401" or any(f'"{name}"' in answer for name in names if name)
