"""Three real vLLM servers, started when a test first asks for one and ended with the test run.

`tools` has the tool and reasoning parsers and a window of 2,048 tokens; `plain` has no such flags, 8,192 tokens and a
key. The tests that kill a server take `plain`; who comes after them gets it started again. `front_ends` has every
pair of parsers (front_ends.py) and 2,048 tokens.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from simulator import SimVllm

from .formats import MODELS
from .servers import PATIENCE, RUST, VllmServer

HERE = Path(__file__).parent
KEY = "wonderland"


# What only the Python front end has, or what front_ends.py makes of it.
_PYTHON_ONLY = frozenset(
    f"test_{name}.py"
    for name in (
        *("messages", "responses", "pooled", "front_ends", "formats", "on_demand", "thoughts", "window"),
        *("simulator", "simulator_parsers"),
    )
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            if RUST and item.path.name in _PYTHON_ONLY:
                item.add_marker(pytest.mark.skip("what the Rust front end does not have"))
            item.add_marker(pytest.mark.timeout(PATIENCE))


@pytest.fixture(scope="session")
def venv() -> Path:
    path = Path(os.environ.get("VLLM_VENV", HERE.parent.parent / ".venv-vllm")).absolute()
    if not (path / "bin" / "vllm").exists():
        pytest.exit(f"there is no vLLM in {path}: run tests/vllm/run.sh, which installs it", returncode=2)
    return path


@pytest.fixture(scope="session")
def pids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("SERVER_NOTES")
    return Path(given) if given else tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def tools_server(venv: Path, pids: Path) -> Iterator[VllmServer]:
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    server = VllmServer("tools", pids, flags, venv, window=2048, logprobs=True)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def plain_server(venv: Path, pids: Path) -> Iterator[VllmServer]:
    flags = ("--enable-scale-out",)  # for /inference/v1/abort_requests
    server = VllmServer("plain", pids, flags, venv, window=8192, api_key=KEY)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def front_ends(venv: Path, pids: Path) -> Iterator[VllmServer]:
    flags = ("--served-model-name", *MODELS)
    server = VllmServer("front_ends", pids, flags, venv, window=2048, env={"FRONT_ENDS": "1"})
    if "VLLM_FRONT_ENDS" in os.environ:  # one that is running already, while a test is being written
        server.port = int(os.environ["VLLM_FRONT_ENDS"])
        yield server
        return
    server.up()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def as_simulated(venv: Path) -> None:
    """Skips what compares the simulated vLLM with another version than the one that it imitates."""
    (found,) = venv.glob("lib/python*/site-packages/vllm-*.dist-info")
    version, imitated = found.name.split("-")[1].partition("+")[0], SimVllm("a").version
    if version != imitated:
        pytest.skip(f"the simulated vLLM is {imitated}, this one {version}")


@pytest.fixture
def tools(tools_server: VllmServer) -> VllmServer:
    tools_server.up()
    return tools_server


@pytest.fixture
def plain(plain_server: VllmServer) -> VllmServer:
    plain_server.up()
    return plain_server


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """A client for looking at the servers themselves."""
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
        yield client
