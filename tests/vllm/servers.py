"""Real vLLM processes for the tests: started by serve.sh, found dead or alive, killed in part or whole."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.real_process import RealProcess
from tests.waiting import until_said

HERE = Path(__file__).parent
RUST = os.environ.get("VLLM_USE_RUST_FRONTEND") == "1"  # before every server of this run
PATIENCE = 3600.0  # seconds until a test is called hung, with the start of two servers beside other programs
START_UP = 600.0  # seconds of CPU; some 60 are usual


@dataclass
class VllmServer(RealProcess):
    """One `vllm serve`."""

    flags: tuple[str, ...]
    venv: Path
    window: int
    api_key: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    logprobs: bool = False  # tests ask it for log probabilities
    start_up: float = field(default=START_UP, kw_only=True)
    made: set[str] = field(default_factory=set)  # front ends that were asked for

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def command(self) -> Sequence[str | Path]:
        keys = ["--api-key", self.api_key] if self.api_key else []
        return [HERE / "serve.sh", str(self.port), "--max-model-len", str(self.window), *keys, *self.flags]

    def environ(self) -> Mapping[str, str]:
        return {"VENV": str(self.venv), **self.env}

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
        starts = self.starts
        super().up()
        if self.logprobs and self.starts > starts:
            self.compile_logprobs()

    def compile_logprobs(self) -> None:
        """vLLM compiles its code for log probabilities at the first request for them: 10 to 20 seconds on two cores, in
        which its engine computes nothing else. No client of a test is to wait for that."""
        body = {"model": "tiny", "prompt": "hi", "max_tokens": 1, "logprobs": 1}
        url = self.url + "/v1/completions"
        httpx.post(url, json=body, headers=self.headers, timeout=PATIENCE, trust_env=False).raise_for_status()

    def kill_api_server(self) -> None:
        """SIGKILL to the process that holds the port; its engine is left behind."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)

    def kill_engine(self) -> None:
        """SIGKILL to the engine's process; the API server finds out by itself."""
        assert self.process is not None
        os.kill(child(self.process.pid, b"EngineCore"), signal.SIGKILL)

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
