"""TLS of the listener: the certificate and its key, read again when the files change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from gateway.config.edits import marks_of
from gateway.config.snapshot import Tls

log = logging.getLogger("gateway.listener")

HANDSHAKE = 10.0  # seconds at most


class ReloadedCertificate:
    """`context` is what new connections are made with. Raises OSError (an ssl.SSLError is one) where the files cannot
    be used at the start; later ones that cannot be used are logged, and the last good ones stay."""

    def __init__(self, tls: Tls) -> None:
        self._files = Path(tls.cert), Path(tls.key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._marks = self._seen = marks_of(self._files)
        self.context.load_cert_chain(*self._files)

    def refresh(self) -> None:
        """Read the files again, if they have changed and two looks in a row find the same: programs write one of them
        after the other."""
        marks = marks_of(self._files)
        settled, self._seen = marks == self._seen, marks
        if marks != self._marks and settled:
            self._marks = marks
            self._load()

    def _load(self) -> None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)  # a pair that fits, before it is used
            self.context.load_cert_chain(*self._files)
        except OSError as error:
            log.error("the certificate %s cannot be used (%s): the last one stays", self._files[0], error)
        else:
            log.info("the certificate %s is read again", self._files[0])
