"""The public certificate authorities are read late."""

from __future__ import annotations

import ssl

import httpx
import pytest

from gateway.transport.bounded import TrustOnDemand, async_client


async def test_the_public_authorities_are_read_by_the_first_tls_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bool] = []
    create = httpx.create_ssl_context

    def noted(*arguments: object, **options: object) -> ssl.SSLContext:
        read.append(True)
        return create(trust_env=False)

    monkeypatch.setattr(httpx, "create_ssl_context", noted)
    async with async_client(1.0):
        assert not read
    context = TrustOnDemand()
    assert not read
    context.set_alpn_protocols(["http/1.1"])
    wrapped = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="a.example")
    assert read == [True]
    assert wrapped.context.verify_mode is ssl.CERT_REQUIRED
    assert wrapped.context.check_hostname
    assert wrapped.context.cert_store_stats()["x509_ca"] > 50
