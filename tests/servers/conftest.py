"""Real servers other than vLLM, started when a test first asks for one and ended with the test run.

`llama`, `mlx` and `transformers` are one server each, shared by all tests; who finds it dead gets it started again.
`start` makes one with flags of its own, which ends with the test.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from .processes import HF_NAME, TAUGHT, RealServer

HERE = Path(__file__).parent
START_UP = 120.0  # seconds of CPU; transformers takes 15, the others 2
PATIENCE = 1200.0  # seconds until a test is called hung, with the start of two servers beside other programs
LLAMA = ("-c", "4096", "--alias", TAUGHT, "--metrics")
MLX = ("--model", HF_NAME)

Start = Callable[..., RealServer]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(PATIENCE))


@pytest.fixture(scope="session")
def engines() -> Path:
    path = Path(os.environ.get("ENGINES", HERE.parent.parent / ".venv-engines")).absolute()
    if not (path / "taught.gguf").exists():
        pytest.exit(f"there are no servers in {path}: run tests/servers/run.sh, which installs them", returncode=2)
    return path


@pytest.fixture(scope="session")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("SERVER_NOTES")
    return Path(given) if given else tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def shared(engines: Path, notes: Path) -> Iterator[Callable[[str, tuple[str, ...]], RealServer]]:
    """`shared(kind, flags)`: the one server of this kind, up."""
    servers: dict[str, RealServer] = {}

    def given(kind: str, flags: tuple[str, ...]) -> RealServer:
        server = servers.setdefault(kind, RealServer(kind, notes, kind, engines, flags, start_up=START_UP))
        server.up()
        return server

    yield given
    for server in servers.values():
        server.stop()


@pytest.fixture
def llama(shared: Callable[[str, tuple[str, ...]], RealServer]) -> RealServer:
    """4 slots (llama-server's default) on a pool of 4,096 tokens."""
    return shared("llama", LLAMA)


@pytest.fixture
def mlx(shared: Callable[[str, tuple[str, ...]], RealServer]) -> RealServer:
    return shared("mlx", MLX)


@pytest.fixture
def transformers(shared: Callable[[str, tuple[str, ...]], RealServer]) -> RealServer:
    return shared("transformers", (HF_NAME,))


@pytest.fixture
def start(engines: Path, notes: Path) -> Iterator[Start]:
    """`start(kind, *flags, **env)`: a server of the test's own."""
    servers: list[RealServer] = []

    def given(kind: str, *flags: str, **env: str) -> RealServer:
        name = f"{kind}-{len(servers)}"
        servers.append(RealServer(name, notes, kind, engines, flags, env, start_up=START_UP))
        servers[-1].up()
        return servers[-1]

    yield given
    for server in servers:
        server.stop()


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """A client for looking at the servers themselves."""
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
        yield client
