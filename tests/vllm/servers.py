"""Real vLLM processes for the tests: started by serve.sh, found dead or alive, killed in part or whole."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.waiting import until_said, wait_until

HERE = Path(__file__).parent
START_UP = 240.0  # seconds; 36 to 60 on two idle cores
STOP = 20.0


@dataclass
class VllmServer:
    """One `vllm serve` on a port of its own, the same after every restart.

    `pids` is the folder where the process group is noted, so that run.sh can end it whatever becomes of pytest.
    """

    name: str
    flags: tuple[str, ...]
    venv: Path
    pids: Path
    window: int
    api_key: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    logprobs: bool = False  # tests ask it for log probabilities
    port: int = field(default_factory=lambda: free_port())
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    made: set[str] = field(default_factory=set)  # front ends that were asked for

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    @property
    def log(self) -> Path:
        return self.pids / f"{self.name}.log"

    def routes(self, name: str, **settings: str) -> str:
        """This server as an entry of `backends`, called `name`."""
        said = {"url": f"'{self.url}'", **({"api_key": self.api_key} if self.api_key else {}), **settings}
        return f"{name}: {{{', '.join(f'{key}: {value}' for key, value in said.items())}}}"

    def front_end(self, tool_parser: str, reasoning_parser: str = "none") -> str:
        """The base URL at which it serves as if it had been started with these parsers (with the FRONT_ENDS of
        serve.sh). Waits until it does."""
        url = f"{self.url}/with/{tool_parser}/{reasoning_parser}"
        if url not in self.made:
            httpx.get(url + "/health", timeout=30, trust_env=False).raise_for_status()
            self.made.add(url)
        return url

    # -- life -----------------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Started and answering, or AssertionError with the end of its log."""
        if self.process is not None and self.process.poll() is None and self.answers():
            return
        self.stop()
        self.starts += 1
        keys = ["--api-key", self.api_key] if self.api_key else []
        with self.log.open("ab") as log:
            # Below the tests and the gateway, and in their session, where that counts: its processes spin, and on two
            # cores they can keep others from running for seconds.
            self.process = subprocess.Popen(
                [
                    "nice",
                    "-n",
                    "10",
                    HERE / "serve.sh",
                    str(self.port),
                    "--max-model-len",
                    str(self.window),
                    *keys,
                    *self.flags,
                ],
                env={**os.environ, "VENV": str(self.venv), **self.env},
                stdout=log,
                stderr=log,
                process_group=0,
            )
        (self.pids / f"{self.name}.{self.process.pid}.pid").write_text(str(self.process.pid))
        process = self.process
        wait_until(lambda: self.answers() or process.poll() is not None, START_UP, self.tail)
        assert process.poll() is None, f"{self.name} ended at start-up:\n{self.tail()}"
        if self.logprobs:
            self.compile_logprobs()

    def compile_logprobs(self) -> None:
        """vLLM compiles its code for log probabilities at the first request for them: 10 to 20 seconds on two cores, in
        which its engine computes nothing else. No client of a test is to wait for that."""
        body = {"model": "tiny", "prompt": "hi", "max_tokens": 1, "logprobs": 1}
        url = self.url + "/v1/completions"
        httpx.post(url, json=body, headers=self.headers, timeout=START_UP, trust_env=False).raise_for_status()

    def answers(self) -> bool:
        try:
            return httpx.get(self.url + "/health", timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self, grace: float = STOP) -> None:
        """End everything of it: TERM, and after `grace` seconds at most KILL to the whole group."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP)
        (self.pids / f"{self.name}.{self.process.pid}.pid").unlink(missing_ok=True)
        self.process = None

    def terminate(self) -> None:
        """SIGTERM to the API server, as `docker stop` does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def kill_api_server(self) -> None:
        """SIGKILL to the process that holds the port; its engine is left behind."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)

    def kill_engine(self) -> None:
        """SIGKILL to the engine's process; the API server finds out by itself."""
        assert self.process is not None
        os.kill(child(self.process.pid, b"EngineCore"), signal.SIGKILL)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    # -- what it says of itself -----------------------------------------------------------------------------------

    async def running(self, client: httpx.AsyncClient) -> int:
        """Sequences in its engine now, waiting ones included."""
        text = (await client.get(self.url + "/metrics", headers=self.headers)).text
        wanted = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
        return sum(int(float(line.split()[-1])) for line in text.splitlines() if line.startswith(wanted))

    async def until_running(self, client: httpx.AsyncClient, count: int, within: float = 15.0) -> None:
        """Wait until exactly `count` sequences are in its engine; AssertionError after `within` seconds."""
        now = -1

        async def reached() -> bool:
            nonlocal now
            now = await self.running(client)
            return now == count

        try:
            await until_said(reached, within)
        except TimeoutError:
            raise AssertionError(f"{now} sequences are in the engine after {within} s, not {count}") from None


def child(parent: int, name: bytes) -> int:
    """The process id of `parent`'s child whose command line has `name`."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(status[1]) == parent and name in (entry / "cmdline").read_bytes():
                return int(entry.name)
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
    raise AssertionError(f"process {parent} has no child {name.decode()}")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
