"""Trust in the public certificate authorities, read when the first TLS connection is made.

Their bundle takes 20 ms to read and 2 MB, and a fleet on the LAN speaks plain HTTP.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

import httpx


class TrustOnDemand(ssl.SSLContext):
    """httpx's own context, made by its first use."""

    _made: ssl.SSLContext | None = None

    def __new__(cls) -> TrustOnDemand:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    @property
    def made(self) -> ssl.SSLContext:
        if self._made is None:
            self._made = httpx.create_ssl_context(trust_env=False)
        return self._made

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        self.made.set_alpn_protocols(alpn_protocols)

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return self.made.wrap_bio(*arguments, **options)
