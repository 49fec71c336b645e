"""What the headers of a request say, each thing worked out once.

A client repeats its headers with every request on its connection. The listener recognises that (`RepeatedHead`,
http/request_head.py), and all these requests have one `Caller`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from gateway.admission import access
from gateway.admission.access import Identity
from gateway.admission.origins import check_json
from gateway.config.snapshot import Snapshot
from gateway.domain.privacy import Privacy
from gateway.engines.outgoing import passed_on
from gateway.routing.session_ids import session_in_headers


class Caller:
    """The sender of a request: its `headers` (lower-case names, see header_map.py), its address `peer` and the version
    of its HTTP. Every other attribute is what the function of that name finds in the headers."""

    def __init__(self, headers: dict[bytes, bytes], peer: str, http_version: str = "1.1") -> None:
        self.headers = headers
        self.peer = peer
        self.http_version = http_version
        self._identity: Identity | None = None
        self._snapshot: Snapshot | None = None  # that `_identity` was found in
        self._is_json = False
        self.decisions: Any = None  # what was decided for earlier requests with this head (proxy/decisions.py)

    @property
    def sender(self) -> str:
        """The client's name, once it is identified; else its address."""
        return self._identity.name if self._identity is not None else self.peer

    def identify(self, snapshot: Snapshot) -> Identity:
        """The client by its key. Raises as `access.identify`."""
        if self._identity is None or snapshot is not self._snapshot:
            self._identity = access.identify(snapshot, self.headers, self.peer)
            self._snapshot = snapshot
        return self._identity

    def check_json(self) -> None:
        """Raises `unsupported_media_type` for a body that is not JSON."""
        if not self._is_json:
            check_json(self.headers)
            self._is_json = True

    @cached_property
    def _asks_local_only(self) -> bool:
        return access.asks_local_only(self.headers)

    def privacy(self, client: Identity) -> Privacy:
        """What the headers say, and routes.yaml of the client."""
        return Privacy(local_only=client.local_only or self._asks_local_only)

    def with_privacy(self, privacy: Privacy) -> Caller:
        """A caller whose request says this too. This one may be that of other requests: it is not changed."""
        return Caller({**self.headers, **privacy.headers()}, self.peer, self.http_version)

    @cached_property
    def passed_on(self) -> list[tuple[str, str]]:
        return passed_on(self.headers)

    @cached_property
    def session(self) -> bytes | None:
        return session_in_headers(self.headers)
