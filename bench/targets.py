"""What is measured: the upstream itself, nginx, the gateway, routers in Rust, and whatever else listens on a URL."""

from __future__ import annotations

import compileall
import http.client
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from bench import nginx, processes, routers
from bench.ports import free_ports
from bench.processes import BenchError
from bench.scenarios import ALIAS, BY_NAME, KEY, NAMES, TRACED, UPSTREAM_MODEL, body

START_SECONDS = 60.0

# Everything is on: keys, limits, slots, balancing and failover. Two backends that are one mock.
ROUTES = """\
server: {{data: "{folder}/state"}}
defaults: {{health: {{canary: none}}}}   # the mock says the same to everybody
backends:
  first: {{url: "http://127.0.0.1:{ports[0]}", slots: 4000, tool_parser: hermes}}
  second: {{url: "http://127.0.0.1:{ports[1]}", slots: 4000, tool_parser: hermes}}
aliases:
  {pair}: {{use: [[first, second]], on_unsupported: mend}}
  bench-chain: [first, second]
clients:
  bench: {{key: "{key}", aliases: ["bench-*"], rpm: 100000000, max_inflight: 4000}}
"""
TRACES = 'traces: {{endpoint: "http://127.0.0.1:{ports[0]}"}}\n'  # the mock takes them, too


@dataclass
class Target:
    """A listener under load. Without `command` it is already running and is left alone. `pids`: its processes."""

    name: str
    host: str
    port: int
    model: str = UPSTREAM_MODEL
    command: Sequence[str] = ()
    folder: Path | None = None
    measured: bool = True  # False: its CPU is not a proxy's
    scenarios: Collection[str] | None = None  # that it is for; None = all
    process: subprocess.Popen[bytes] | None = None
    start_ms: float = 0.0
    idle_rss: int = 0
    pids: list[int] = field(default_factory=list)

    def start(self, core: int) -> None:
        """Spawn it on `core`, wait for the first right answer, read the idle memory.

        Raises BenchError, with the end of its log, when it exits or does not answer.
        """
        began = time.perf_counter()
        if self.command and self.folder:
            with (self.folder / "log").open("wb") as log:
                self.process = processes.spawn(self.command, core, cwd=self.folder, stdout=log, stderr=log)
        self._first_answer(began + START_SECONDS)
        if self.process is not None:
            self.pids = [self.process.pid]
            self.start_ms = (time.perf_counter() - began) * 1000
            time.sleep(0.5)  # what a start leaves to do
        elif self.measured:
            self.pids = processes.listeners(self.port)
        self.idle_rss = processes.rss_bytes(processes.process_tree(self.pids))

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End what `start` spawned."""
        if self.process is not None:
            processes.stop(self.process, how)
            self.process = None

    def _first_answer(self, until: float) -> None:
        problem = "no connection"
        while time.perf_counter() < until:
            if self.process is not None and self.process.poll() is not None:
                raise BenchError(f"{self.name} exited with {self.process.returncode}.\n{self._log()}")
            try:
                status, answer = self._ask()
            except (OSError, http.client.HTTPException) as error:
                problem = str(error)
            else:
                if status == 200 and b"is 204" in answer:
                    return
                problem = f"status {status}: {answer[:300].decode(errors='replace')}"
            time.sleep(0.002)
        raise BenchError(f"{self.name} gave no right answer within {START_SECONDS:.0f} s: {problem}\n{self._log()}")

    def _ask(self) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        try:
            headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
            connection.request("POST", "/v1/chat/completions", body(BY_NAME["small"], self.model), headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _log(self) -> str:
        if self.folder is None:
            return ""
        return "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-20:])


def direct(port: int) -> Target:
    """The upstream without a proxy: its latency is the zero of the others."""
    # A latency, and how fast load and upstream are by themselves.
    return Target("direct", "127.0.0.1", port, measured=False, scenarios=("small", "latency"))


def nginx_target(folder: Path, upstreams: Sequence[int]) -> Target | None:
    """None when nginx is not installed."""
    binary = nginx.executable()
    if binary is None:
        return None
    port = free_ports(1)
    folder.mkdir()
    return Target("nginx", "127.0.0.1", port, command=nginx.command(binary, folder, port, upstreams), folder=folder)


def gateway_target(
    folder: Path, upstreams: Sequence[int], runner: Sequence[str] = (), *, traced: bool = False
) -> Target:
    """The gateway with all features on; `traced` = and every request traced, for the scenario of that name alone.
    `runner`: what the interpreter runs instead of the `gateway` script."""
    compileall.compile_dir(str(processes.ROOT / "gateway"), quiet=1)  # as an installed package is
    port = free_ports(1)
    folder.mkdir()
    config = folder / "routes.yaml"
    routes = ROUTES + TRACES if traced else ROUTES
    config.write_text(routes.format(folder=folder, ports=upstreams, pair=ALIAS, key=KEY))
    serve = ("serve", "--config", str(config), "--host", "127.0.0.1", "--port", str(port))
    script = Path(sys.executable).with_name("gateway")
    command = [sys.executable, *(runner or (str(script),)), *serve]
    scenarios = [name for name in NAMES if (name == TRACED) is traced]
    return Target("gateway", "127.0.0.1", port, ALIAS, command, folder, scenarios=scenarios)


def router_target(router: routers.Router, folder: Path, upstreams: Sequence[int]) -> Target:
    """A router written in Rust. Raises NotInstallable with the reason."""
    binary = routers.executable(router)
    port = free_ports(2)
    metrics_port = port + 1
    folder.mkdir()
    command = routers.command(binary, router, port, metrics_port, upstreams)
    return Target(router.name, "127.0.0.1", port, command=command, folder=folder)


def other_target(text: str) -> Target:
    """`NAME=http://host:port[@model]`: a proxy that somebody else started in front of the mock's port."""
    name, _, rest = text.partition("=")
    url, _, model = rest.partition("@")
    parts = urlsplit(url)
    if not name or parts.scheme != "http" or not parts.hostname:
        raise BenchError(f"--target {text}: expected NAME=http://HOST:PORT or NAME=http://HOST:PORT@MODEL")
    return Target(name, parts.hostname, parts.port or 80, model or UPSTREAM_MODEL)
