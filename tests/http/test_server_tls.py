"""TLS of the listener."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from gateway.config.load import load_text
from gateway.http.app import App
from gateway.http.server import listen, make_server
from simulator import SimVllm
from tests.support import PromptServer, without_canaries
from tests.waiting import until


def make_pair(folder: Path, name: str) -> None:
    """A certificate that signs itself, for 127.0.0.1 and this name."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"), "-subj", f"/CN={name}",
         "-addext", f"subjectAltName=IP:127.0.0.1,DNS:{name}"],
        check=True, capture_output=True,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_pair(tmp_path, "one.example")
    return tmp_path


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[PromptServer, int, int]]:
    """The server, the port with TLS and the one without."""
    sim = SimVllm(name="a", served=["m"], context=32768)
    async with sim.serve(port=0) as url:
        tls = f"tls: {{cert: '{folder}/cert.pem', key: '{folder}/key.pem'}}"
        routes = f"server: {{data: '{folder}', {tls}}}\nbackends: {{chat: {{url: '{url}'}}}}"
        app = App(without_canaries(load_text(routes, environ={}).snapshot))
        socks = [listen("127.0.0.1", 0), listen("127.0.0.1", 0)]
        server = PromptServer(make_server(app).config, app)
        task = asyncio.create_task(server.serve(sockets=socks))
        await until(lambda: server.started and len(server.servers) == 2)
        await until(lambda: app.gateway.fleet["chat"].health.state.value == "ready")
        yield server, socks[0].getsockname()[1], socks[1].getsockname()[1]
        server.stop()
        await task


def name_of(port: int, trusted: Path) -> str:
    """The name in the certificate that a new connection gets."""
    context = ssl.create_default_context(cafile=str(trusted))
    with (
        socket.create_connection(("127.0.0.1", port)) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as wrapped,
    ):
        found = wrapped.getpeercert()
    assert found is not None
    subject: Any = found["subject"]
    return str(dict(part[0] for part in subject)["commonName"])


async def test_chats_are_whole_and_streamed_over_tls_and_plain_at_a_further_address(folder: Path) -> None:
    async with served(folder) as (_, port, plain):
        context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
        http = httpx.AsyncClient(verify=context, trust_env=False)
        for url in (f"https://127.0.0.1:{port}/v1", f"http://127.0.0.1:{plain}/v1"):
            client: Any = AsyncOpenAI(base_url=url, api_key="none", http_client=http)
            asked: Any = [{"role": "user", "content": "What is 12*17?"}]
            whole = await client.chat.completions.create(model="chat", messages=asked)
            assert "204" in whole.choices[0].message.content
            stream = await client.chat.completions.create(model="chat", messages=asked, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
            assert "204" in text
            assert (await http.get(url.removesuffix("/v1") + "/status")).status_code == 200
            refused = await http.post(f"{url}/chat/completions", content=b"{", headers={"connection": "close"})
            assert refused.status_code == 400
        await http.aclose()


async def test_plain_http_at_the_port_with_tls_is_no_answer(folder: Path) -> None:
    async with served(folder) as (_, port, _plain), httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.HTTPError):
            await client.get(f"http://127.0.0.1:{port}/health")


async def test_a_renewed_certificate_is_used_and_a_broken_one_is_not(folder: Path) -> None:
    async with served(folder) as (server, port, _):
        assert server.certificate is not None
        trusted = folder / "cert.pem"
        assert await asyncio.to_thread(name_of, port, trusted) == "one.example"
        await asyncio.to_thread(make_pair, folder, "two.example")
        for _ in range(2):
            server.certificate.refresh()
        assert await asyncio.to_thread(name_of, port, trusted) == "two.example"
        kept = await asyncio.to_thread(trusted.read_bytes)
        await asyncio.to_thread((folder / "key.pem").write_text, "nonsense")
        for _ in range(2):
            server.certificate.refresh()
        await asyncio.to_thread((folder / "kept.pem").write_bytes, kept)
        assert await asyncio.to_thread(name_of, port, folder / "kept.pem") == "two.example"


def test_a_pair_is_read_only_when_two_looks_find_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.config.snapshot import Tls
    from gateway.http.server import ReloadedCertificate

    certificate = ReloadedCertificate(Tls(str(folder / "cert.pem"), str(folder / "key.pem")))
    read: list[bool] = []
    monkeypatch.setattr(ReloadedCertificate, "_load", lambda _: read.append(True))
    make_pair(folder, "two.example")
    certificate.refresh()
    assert not read
    certificate.refresh()
    certificate.refresh()
    assert read == [True]


def test_mistakes_of_the_file() -> None:
    from tests.config.test_validate import FINE, mistakes, oddities

    assert "server.tls: 'key' is missing" in mistakes(f"server: {{tls: {{cert: /x}}}}\n{FINE}")[0]
    assert "did you mean 'cert'?" in mistakes(f"server: {{tls: {{ssl_certfile: /x, key: /y}}}}\n{FINE}")[0]
    assert "there is no file /nowhere" in oddities(f"server: {{tls: {{cert: /nowhere, key: /nowhere}}}}\n{FINE}")[0]
