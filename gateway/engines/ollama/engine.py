"""Ollama's native API. Only this API takes `num_ctx`; through the others Ollama may cut the prompt."""

from __future__ import annotations

import re
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from gateway.config.backends import names_cloud_model
from gateway.domain.backend import BackendState
from gateway.domain.body import value_of
from gateway.domain.request import IMAGE_TOKENS
from gateway.domain.tokens import MIN_ROOM, PRIOR_DENSE, PRIOR_SPARSE, count_of
from gateway.domain.upstream import Response, UpstreamFailure
from gateway.engines.base import (
    Engine,
    EngineRequest,
    InexpressibleRequest,
    WholeResponse,
    authorized,
    read_out,
    refused,
)
from gateway.engines.ollama.calls import RequiredCallReader
from gateway.engines.ollama.installed_models import bounded, model_windows, runs_elsewhere, window_for
from gateway.engines.ollama.loading import loaded
from gateway.engines.ollama.reply import STOPPED, OllamaLine, ReplyBuilder, is_cut_call, read_line
from gateway.engines.ollama.request import OllamaCall, chat_call, completion_call, embeddings_call, fit_to_window
from gateway.engines.ollama.stream import OllamaStream, OllamaWhole, whole_line
from gateway.large_bodies import apart_if_large
from gateway.transport.h1 import post_json

WHOLE_MOST = 64 * 1024 * 1024  # bytes of an answer that is read in one piece
LEVELS_SINCE = (0, 17, 7)  # from this version on every model that thinks takes a level
CUT_FROM = 1024  # tokens: in shorter prompts most tokens come from the template

if TYPE_CHECKING:
    from gateway.engines.ollama.pictures import HostLookups

_encode = msgspec.json.Encoder().encode
ERROR = re.compile(rb'\A\s*\{\s*"error"\s*:\s*"llama-server returned invalid tool call')
_NO_THINKING = re.compile(rb"does not support thinking|think value")


class OllamaEngine(Engine):
    """`engine: ollama`. docs/engines.md lists the translated fields."""

    name = "ollama"

    def __init__(self) -> None:
        self._lookups: HostLookups | None = None  # made by the first picture that is fetched

    async def send(self, state: BackendState, call: EngineRequest) -> Response:
        """What Ollama's API cannot express is answered with 400; its own errors are passed on."""
        try:
            if state.backend.images.fetch:
                from gateway.engines.ollama.pictures import HostLookups, fetch_pictures  # httpx, which most never need

                self._lookups = self._lookups or HostLookups()
                await fetch_pictures(state.backend.images.fetch, call, self._lookups)
            size = sum(len(memoryview(call.fields[name])) for name in call.endpoint.prompt if name in call.fields)
            ours = await apart_if_large(call.sender, size, partial(translate, state, call))
        except InexpressibleRequest as inexpressible:
            return refused(inexpressible)
        if not call.checks:
            keep_alive, embeds = ours.body.get("keep_alive"), call.endpoint.name == "embeddings"
            if (refusal := await loaded(state, ours.window, keep_alive, embeds=embeds)) is not None:
                return refusal
        response = await self._post(state, call, ours)
        if response.status == 400 and ours.think_wished and ours.body.get("think"):
            body = await read_out(response)
            if not _NO_THINKING.search(body):
                return WholeResponse(response.status, body, response.headers)
            del ours.body["think"]  # an effort is a wish, and this model cannot think
            response = await self._post(state, call, ours)
        if response.status == 500:
            response = await self._cut_off(call, ours, response)
        return self._translated(state, call, ours, response) if response.status < 300 else response

    async def _cut_off(self, call: EngineRequest, ours: OllamaCall, response: Response) -> Response:
        """The answer to a request whose limit has cut off a call, which Ollama answers with a 500."""
        body = await read_out(response)
        found = ERROR.search(body)
        if found is None or not is_cut_call(read_line(body).error):
            return WholeResponse(response.status, body, response.headers)
        count = ours.body.get("options", {}).get("num_predict", 0)
        line = {"message": {"content": ""}, "done": True, "done_reason": "length", "eval_count": count}
        return WholeResponse(200, _encode(line))

    def _post(self, state: BackendState, call: EngineRequest, ours: OllamaCall) -> Coroutine[Any, Any, Response]:
        assert state.client is not None
        backend = state.backend
        headers = authorized(call.headers, backend)  # a proxy in front of Ollama may need the key
        return post_json(state.client, backend.root_path + ours.path, headers, ours.body)

    def _translated(self, state: BackendState, call: EngineRequest, ours: OllamaCall, response: Response) -> Response:
        model = str(ours.body["model"])
        if call.endpoint.name == "embeddings":
            return OllamaWhole(response, lambda body: (embeddings(body, model), None), WHOLE_MOST, call.memory)
        reply = ReplyBuilder(call.request_id, model, chat=call.endpoint.name == "chat", wants_usage=ours.wants_usage)
        low, version = state.ratio.estimate(ours.text_bytes).low, state.reported.version
        window = bounded(state, ours.window)
        calls = RequiredCallReader(ours.required_call) if ours.required_call is not None else None

        def violation(last: OllamaLine) -> str | None:
            if last.remote_host and not state.backend.cloud:
                state.evidence.misconfigured(runs_elsewhere(model, str(last.remote_host)))
            if calls is not None and calls.ignored:
                return "tool_choice_ignored"
            return cut_violation(last, ours.text_bytes, window, low, version)

        if call.stream:
            return OllamaStream(response, reply, violation, calls, call.memory)

        def whole(body: bytes) -> tuple[bytes, str | None]:
            line = whole_line(body)
            if not line.done:
                line.done, line.done_reason, reply.stopped = True, "length", STOPPED
            if calls is not None:
                line = calls.take(line)
            return reply.whole(line), violation(line) or ("repetition" if reply.stopped else None)

        return OllamaWhole(response, whole, WHOLE_MOST, call.memory)

    def read_models(self, answer: Any) -> Mapping[str, int | None]:
        """The windows that the models were trained for, from `/api/tags`."""
        return model_windows(answer)


def translate(state: BackendState, call: EngineRequest) -> OllamaCall:
    """The call as a request of Ollama's API. Raises Refused."""
    if not state.backend.cloud and names_cloud_model(str(value_of(call.fields["model"]))):
        raise InexpressibleRequest(
            "Ollama would send this request out of the LAN: the backend must name a model that runs there."
        )
    if call.endpoint.name == "chat":
        levels, thinking = version_of(state.reported.version) >= LEVELS_SINCE, state.backend.thinking
        ours = chat_call(call.fields, stream=call.stream, thinking=thinking, levels=levels)
    elif call.endpoint.name == "completions":
        ours = completion_call(call.fields, stream=call.stream)
    else:
        ours = embeddings_call(call.fields)
    writes = call.endpoint.name != "embeddings"
    text = (ours.text_bytes + ours.other_bytes) / (state.ratio.value or PRIOR_DENSE) * 1.1
    prompt = int(text) + 1 + ours.pictures * IMAGE_TOKENS
    room = ours.body.get("options", {}).get("num_predict") or MIN_ROOM if writes else 0
    window = window_for(state, prompt + room)
    most = bounded(state, window)
    fit_to_window(ours, window, max(min(MIN_ROOM, most), most - prompt) if writes and most else None)
    return ours


def cut_violation(last: OllamaLine, text_bytes: int, window: int | None, low: int, version: str | None) -> str | None:
    """`prompt_cut` where Ollama has cut the prompt that was sent, or None if it cannot be proved. `low`: the lowest
    estimate of its tokens. `version`: Ollama's, as the prober reported it.

    A runner that cuts fills its whole window, which leaves no room for a token of answer. The server drops whole
    messages before that, which may leave a prompt of any length; a count below half the lowest estimate proves it.
    Such a count is evidence only for versions from 0.4 to 0.12.5: since 0.12.6 nothing is cut (`truncate: false`), and
    cached tokens are counted neither before 0.4 nor in 0.30.0. A learned ratio may only lower the estimate."""
    count = count_of(last.prompt_eval_count)
    if window is not None and count >= window - 1:
        return "prompt_cut"
    least = min(low, text_bytes / PRIOR_SPARSE)
    counts_all_and_cuts = (0, 4, 0) <= version_of(version) < (0, 12, 6)
    return "prompt_cut" if counts_all_and_cuts and least >= CUT_FROM and 0 < count < least / 2 else None


def version_of(version: str | None) -> tuple[int, ...]:
    """ "0.12.6" as numbers; (0,) when it is not known."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version or "")
    return tuple(int(number) for number in found.groups()) if found else (0,)


class _EmbeddingsAnswer(msgspec.Struct):
    embeddings: list[Raw]
    prompt_eval_count: Any = 0


_decode_embedded = msgspec.json.Decoder(_EmbeddingsAnswer).decode


def embeddings(body: bytes, model: str) -> bytes:
    """Ollama's list of vectors as OpenAI's list of objects. (Who asked for base64 gets it of inspection/pooled.py.)"""
    try:
        answer = _decode_embedded(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UpstreamFailure(f"Ollama answered 200 without embeddings: {error}") from None
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(answer.embeddings)]
    prompt = count_of(answer.prompt_eval_count)
    usage = {"prompt_tokens": prompt, "total_tokens": prompt}
    return _encode({"object": "list", "data": data, "model": model, "usage": usage})
