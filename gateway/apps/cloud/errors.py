"""Translates litellm's exceptions into the answers and failures that the request path knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.domain.upstream import ConnectFailure, OwnFailure, ResetFailure, SilenceFailure, UpstreamFailure
from gateway.engines.base import WholeResponse, error_response
from gateway.shortage import shortage_of

CAUSES_MOST = 20
_NO_CONNECTION = frozenset({"ConnectError", "ConnectTimeout", "ClientConnectorError"})  # httpx's and aiohttp's
_ANSWERED = frozenset({"BaseLLMException"})  # litellm's, with the status of the answer


class BackendMisconfigured(Exception):
    """A backend is configured in routes.yaml in a way that cannot work."""


def error_answer(sdk: Any, error: Exception, key: str | None) -> WholeResponse:
    """Translate an exception before the first chunk into an error answer with its status. Raises an `UpstreamFailure`
    for exceptions that are no answer of the cloud. (litellm gives a timeout the status 408, which would look like the
    client's fault.)"""
    error = unwrapped(sdk, error)
    if isinstance(error, UpstreamFailure):
        raise error
    if (kind := shortage_of(error)) is not None:
        raise OwnFailure(kind, unsent=False) from None
    message, status, exceptions = text_of(error, key), status_of(error), sdk.exceptions
    if find_cause(error, _NO_CONNECTION) is not None:
        raise ConnectFailure(message) from None
    if isinstance(error, exceptions.Timeout):
        raise SilenceFailure(message) from None
    if isinstance(error, exceptions.APIConnectionError):
        # litellm raises this for every error without a class of its own, even for a 403 of Anthropic.
        cause = find_cause(error, _ANSWERED)
        if cause is None or status_of(cause) >= 500:
            raise ResetFailure(message) from None
        status = status_of(cause)
    if status == 404:
        message = f"The model was not found: {message}"
    elif isinstance(error, exceptions.ContextWindowExceededError):
        message = f"{message} (context_length_exceeded)"
    headers = getattr(error, "litellm_response_headers", None)
    retry_after = headers.get("retry-after") if isinstance(headers, Mapping) else None
    return error_response(status, message, retry_after=retry_after if isinstance(retry_after, str) else None)


def unwrapped(sdk: Any, error: Exception) -> Exception:
    """The original exception. `MidStreamFallbackError` is a `ServiceUnavailableError` that wraps another one."""
    if isinstance(error, sdk.exceptions.MidStreamFallbackError):
        original = getattr(error, "original_exception", None)
        return original if isinstance(original, Exception) else error
    return error


def status_of(error: BaseException) -> int:
    try:
        status = int(getattr(error, "status_code", 500))
    except (TypeError, ValueError):
        return 500
    return status if 400 <= status < 600 else 500


def find_cause(error: BaseException | None, names: frozenset[str]) -> BaseException | None:
    """The exception of one of these classes in the chain of causes."""
    for _ in range(CAUSES_MOST):
        if error is None or any(kind.__name__ in names for kind in type(error).__mro__):
            return error
        error = error.__cause__ or error.__context__
    return None


def text_of(error: Exception, key: str | None) -> str:
    """The exception's message, with our key masked."""
    text = str(getattr(error, "message", None) or error) or type(error).__name__
    return text.replace(key, "***") if key else text
