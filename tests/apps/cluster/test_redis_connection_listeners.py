"""Redis behind TLS with a certificate made here, and behind a Unix socket."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.ports import free_ports
from simulator import SimVllm
from tests.apps.cluster.joined import ask, shared, slots_of
from tests.apps.cluster.redis_server import RedisServer, running_redis
from tests.support import running_gateway


class Listening(NamedTuple):
    """Where one redis-server listens beside its usual port."""

    server: RedisServer
    tls_port: int
    certificate: Path
    socket: Path


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not here to make a certificate (Debian: apt-get install openssl)")
    folder = tmp_path_factory.mktemp("redis")
    certificate, key, socket = folder / "ca.pem", folder / "key.pem", folder / "redis.sock"
    made = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=redis", "-addext"]
    made += ["subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([openssl, "req", *made], capture_output=True, timeout=60, check=True)
    port = free_ports(1)
    tls = ("--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    more = ("--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no", "--unixsocket", str(socket))
    with running_redis(*tls, *more) as server:
        yield Listening(server, port, certificate, socket)


async def joins(url: str, where: str) -> None:
    """Two gateways at this URL decide together: what one holds the other sees."""
    sim = SimVllm("a")
    async with sim.serve() as backend:
        routes = f"server: {{shared: '{url}'}}\n{slots_of(backend, 2)}"
        async with running_gateway(routes) as one, running_gateway(routes) as two:
            for gateway in (one, two):
                await gateway.until(lambda g=gateway: shared(g).gateways == 2)  # type: ignore[misc]  # binds the name
                assert shared(gateway).joined
                assert shared(gateway).describe()["redis"] == where
                await gateway.until_ready("a")
            answers = [await ask(gateway) for gateway in (one, two)]
            assert [answer.status_code for answer in answers] == [200, 200]


async def test_redis_behind_tls_is_believed_by_the_certificate_that_the_url_names(listening: Listening) -> None:
    at = f"127.0.0.1:{listening.tls_port}/2"
    await joins(f"rediss://{at}?ssl_ca_certs={listening.certificate}&socket_timeout=2", at)


async def test_redis_behind_tls_is_believed_by_the_certificate_that_the_process_trusts(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(listening.certificate))
    at = f"127.0.0.1:{listening.tls_port}/0"
    await joins(f"rediss://{at}?socket_timeout=2", at)


async def test_redis_behind_tls_that_nothing_vouches_for_is_away(listening: Listening) -> None:
    """The gateway says why, and serves on its own."""
    async with SimVllm("a").serve() as backend:
        url = f"rediss://127.0.0.1:{listening.tls_port}/0?socket_timeout=2"
        async with running_gateway(f"server: {{shared: '{url}'}}\n{slots_of(backend, 2)}") as one:
            await one.until_ready("a")
            assert not shared(one).joined
            assert "certificate verify failed" in shared(one).reason
            assert (await ask(one)).status_code == 200


async def test_redis_at_a_unix_socket(listening: Listening) -> None:
    await joins(f"unix://{listening.socket}?socket_timeout=2&db=3", f"{listening.socket}/3")
