"""`gateway serve` as a process of its own: for what only a process has, its memory and its files."""

from __future__ import annotations

import asyncio
import resource
import shlex
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from bench.ports import free_ports
from tests.demo_process import PATIENCE
from tests.waiting import until_said

MIB = 1024 * 1024


@dataclass
class GatewayProcess:
    """`url` is its root; `log` what it has written."""

    url: str
    pid: int
    log: Path
    client: httpx.AsyncClient

    def resident(self) -> int:
        """Bytes of memory that it holds."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

    def files(self) -> int:
        """Descriptors that it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    async def metric(self, sample: str) -> float:
        """A sample as /metrics writes it, labels and all; 0 when it is not there."""
        page = (await self.client.get("/metrics")).text
        found = [line for line in page.splitlines() if line.rpartition(" ")[0] == sample]
        return float(found[0].rpartition(" ")[2]) if found else 0.0


@asynccontextmanager
async def gateway_process(
    folder: Path, routes: str, *, files: int | None = None, names: Sequence[Path] = ()
) -> AsyncIterator[GatewayProcess]:
    """Started on a free port, and answering. `files`: how many descriptors it may have. `names`: files of /etc that it
    sees instead of the machine's."""
    (folder / "routes.yaml").write_text(routes)
    port, log = free_ports(1), folder / "gateway.log"
    command = [sys.executable, "-m", "gateway", "serve", "--host", "127.0.0.1", "--port", str(port)]
    if names:
        mounts = "".join(f"mount --bind {shlex.quote(str(name))} /etc/{name.name} && " for name in names)
        command = ["unshare", "-m", "sh", "-c", f'{mounts}exec "$@"', "sh", *command]
    limit = None if files is None else partial(resource.setrlimit, resource.RLIMIT_NOFILE, (files, files))
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(*command, cwd=folder, stderr=out, preexec_fn=limit)
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False, verify=False) as client:
            await until_said(lambda: _answers(client), PATIENCE)
            yield GatewayProcess(url, process.pid, log, client)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _answers(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.HTTPError:
        return False
