"""Clouds with their own API, through the litellm SDK. (OpenAI-compatible clouds use `engine: openai`.)

The SDK takes seconds and 160 MB to import, so that happens on first use and in a thread.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.apps.cloud.errors import BackendMisconfigured, error_answer
from gateway.apps.cloud.request import chat_arguments, embeddings_arguments
from gateway.apps.cloud.stream import LiteLLMStream, embeddings_body, whole_body
from gateway.config.backends import CLOUD_MISSING, INSTALL_CLOUD
from gateway.config.snapshot import Backend
from gateway.domain.backend import BackendState
from gateway.domain.upstream import Response
from gateway.engines.base import Engine, EngineRequest, InexpressibleRequest, WholeResponse, error_response, refused

log = logging.getLogger("gateway.litellm")

READ_TIMEOUT = 3600.0  # seconds; the request path applies its own, shorter timeouts

# Without `url`: the providers whose address litellm knows, or builds from region and project (None). It would send
# requests for any other provider to api.openai.com.
ADDRESSES: Mapping[str, str | None] = {
    "anthropic": "https://api.anthropic.com",
    **dict.fromkeys(("gemini", "vertex_ai", "bedrock", "bedrock_converse", "sagemaker", "sagemaker_chat")),
    **dict.fromkeys(("cohere", "cohere_chat")),
}


class LiteLLMEngine(Engine):
    """`engine: litellm`. docs/engines.md lists which fields are passed on."""

    name = "litellm"

    def __init__(self) -> None:
        self._sdk: Any = None

    async def prepare(self) -> None:
        try:
            await self.load()
        except ImportError:
            log.error("%s: its backends serve nothing - %s", CLOUD_MISSING, INSTALL_CLOUD)

    async def load(self) -> Any:
        """The SDK. The first call imports it in a thread (seconds). Raises ImportError without the extra `cloud`."""
        if self._sdk is None:
            self._sdk = await asyncio.to_thread(import_sdk)
        return self._sdk

    async def send(self, state: BackendState, call: EngineRequest) -> Response:
        backend = state.backend
        key = backend.api_key.reveal() if backend.api_key is not None else None
        try:
            sdk = await self.load()
        except ImportError as error:
            return error_response(503, f"litellm cannot be imported ({error}): {INSTALL_CLOUD}")
        try:
            return await self._ask(sdk, backend, call, key)
        except InexpressibleRequest as inexpressible:
            return refused(inexpressible)
        except BackendMisconfigured as misrouted:
            return error_response(404, str(misrouted))
        except Exception as error:
            return error_answer(sdk, error, key)

    async def _ask(self, sdk: Any, backend: Backend, call: EngineRequest, key: str | None) -> Response:
        import httpx  # the SDK has imported it

        model = str(msgspec.json.decode(call.fields["model"]))
        provider = provider_of(sdk, model)
        common = {
            "model": model,
            "api_base": address(backend, provider, model),
            "api_key": key,
            "timeout": httpx.Timeout(READ_TIMEOUT, connect=backend.timeouts.connect),
            "max_retries": 0,
            "num_retries": 0,
        }
        if call.endpoint.name == "embeddings":
            reply = await sdk.aembedding(**embeddings_arguments(call.fields), **common)
            return WholeResponse(200, embeddings_body(reply))
        supported = sdk.get_supported_openai_params(model=model, custom_llm_provider=provider) or ()
        arguments = chat_arguments(call.fields, frozenset(supported), stream=call.stream)
        reply = await sdk.acompletion(**arguments, **common)
        if not call.stream:
            return WholeResponse(200, whole_body(reply, call.request_id))
        stream = LiteLLMStream(sdk, reply, call.request_id, key)
        await stream.peek()
        return stream


ENGINE = LiteLLMEngine()


def import_sdk() -> Any:
    """Import litellm, so configured that it loads no price lists or `.env` files and sends no telemetry."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    sdk: Any = importlib.import_module("litellm")
    sdk.telemetry = False
    sdk.suppress_debug_info = True
    sdk.turn_off_message_logging = True
    return sdk


def provider_of(sdk: Any, model: str) -> str:
    try:
        return str(sdk.get_llm_provider(model)[1])
    except sdk.exceptions.BadRequestError:
        raise BackendMisconfigured(
            f"The model {model!r} was not found at any provider: name it as provider/model, e.g. anthropic/{model}."
        ) from None


def address(backend: Backend, provider: str, model: str) -> str | None:
    """`api_base` for litellm. Raises BackendMisconfigured where litellm would fall back to api.openai.com."""
    if backend.url is not None:
        # litellm appends /v1/messages for Anthropic, and no /v1 for OpenAI-compatible APIs.
        return backend.url.removesuffix("/v1") if provider == "anthropic" else backend.url
    if provider not in ADDRESSES:
        raise BackendMisconfigured(
            f"The address of model {model!r} was not found: litellm knows none for provider {provider!r} that it would "
            "surely use. Set `url` on this backend; for an OpenAI-compatible cloud use `engine: openai`."
        )
    return ADDRESSES[provider]
