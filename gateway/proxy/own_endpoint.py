"""Requests of an endpoint that is translated, at servers that have this endpoint themselves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from msgspec import Raw

from gateway.domain.backend import BackendState
from gateway.domain.request import InferenceRequest
from gateway.engines.base import Own
from gateway.engines.openai.responses import own_body
from gateway.inspection.error_replies import Verdict


def own_call(request: InferenceRequest, state: BackendState, chat: Mapping[str, Raw]) -> Own | None:
    """The client's own request for this backend; None = it is asked as a chat, with `chat`."""
    own = request.own
    how = None if own is None else state.own_responses(time.monotonic())
    if own is None or how is None:
        return None
    fields = own_body(request, chat, how)
    return None if fields is None else Own(own.endpoint, fields, own.untranslatable is not None)


def of_own_endpoint(verdict: Verdict) -> Verdict:
    """The meaning of an answer to a request that no chat could replace. A server without the endpoint may well serve
    chats: so it is not to be found out with one."""
    return replace(verdict, kind="incapable") if verdict.kind == "unserved" else verdict
