"""A simulated `vllm serve` 0.32."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

from simulator import responses, tokens, validation
from simulator.answer import Answer, plan
from simulator.base import Sim
from simulator.chat import CONTENT_TYPE, ChatStream, Shape, new_shape_id, seconds, send_chat
from simulator.completions import TextShape, TextStream, send_text
from simulator.embeddings import send_embeddings, send_ranking, send_scores
from simulator.engine import Engine, EngineDied
from simulator.faults import Fault
from simulator.metrics import render
from simulator.model import Model, Thinking, beginning_of
from simulator.replies import sentence
from simulator.responses import ResponseStream, send_response
from simulator.server import Exchange
from simulator.validation import ApiError
from simulator.wire import EventStream

_VARY = [("vary", "Origin")]
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
_POOLING = {
    "/v1/embeddings": send_embeddings,
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), send_ranking),
    **dict.fromkeys(("/score", "/v1/score"), send_scores),
}
_NOT_FOUND = {"detail": "Not Found"}


class SimVllm(Sim):
    """One vLLM server with one model.

    `prefill`, `decode`: tokens per second. `family`: the format in which the model writes tool calls (a parser's name;
    default: the tool parser's own, else hermes). `thinking`: optional | always | never; default by reasoning parser.
    `speedup`: simulated seconds per real second. `cache_tokens`: of its prefix cache.
    `flags`: those of its KV cache that /metrics shows, without dashes
    (`gpu-memory-utilization`). `generic`: speak as another OpenAI-compatible server (no metrics, no
    tokenize, no vLLM fields beyond chat); then `owned_by` is written in its model list, and each path of `shows` is
    answered with that JSON. `responds`: it has `/v1/responses`, as vLLM has since 0.10.
    """

    def __init__(
        self,
        name: str = "vllm",
        served: List[str] = ("model",),
        context: int = 131072,
        slots: int = 8,
        prefill: float = 1e6,
        decode: float = 1e5,
        tool_parser: str | None = "hermes",
        reasoning_parser: str | None = None,
        family: str | None = None,
        api_key: str | None = None,
        auto_tools: bool = True,
        pooling: bool = False,
        version: str = "0.32.0",
        cold_start: float = 0.0,
        *,
        thinking: Thinking | None = None,
        vision: bool = False,
        chunk: int = 2048,
        crowding: float = 0.0,
        queue_limit: int | None = None,
        prefix_cache: bool = False,
        cache_tokens: int | None = None,
        spec_tokens: int = 0,
        keep_alive: float = 5.0,
        speedup: float = 1.0,
        flags: Mapping[str, Any] | None = None,
        generic: bool = False,
        dev_mode: bool = False,
        owned_by: str = "local",
        shows: Mapping[str, Any] | None = None,
        responds: bool = False,
    ) -> None:
        super().__init__(name, cold_start=cold_start, speedup=speedup)
        self.served, self.context, self.version = list(served), context, version
        self.tool_parser = None if tool_parser in (None, "none") else tool_parser
        self.reasoning_parser = None if reasoning_parser in (None, "none") else reasoning_parser
        self.auto_tools, self.api_key, self.pooling, self.vision = auto_tools, api_key, pooling, vision
        self.keep_alive, self.generic, self.flags = keep_alive, generic, flags or {}
        self.dev_mode = dev_mode  # VLLM_SERVER_DEV_MODE=1: it can be put to sleep
        self.owned_by, self.shows, self.responds = owned_by, shows or {}, responds
        self.model = Model(self.served[0], self.tool_parser, self.reasoning_parser, family, thinking)
        self.engine = Engine(
            slots, prefill, decode, context=context, chunk=chunk, crowding=crowding, speedup=speedup,
            queue_limit=queue_limit, prefix_cache=prefix_cache, cache_tokens=cache_tokens, spec_tokens=spec_tokens,
            on_change=self.changed,
        )  # fmt: skip
        self.fingerprint = f"vllm-{version}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        self._ids = random.Random(name)

    def engines(self) -> list[Engine]:
        return [self.engine]

    def restarted(self) -> None:
        self.engine.wake_up()
        self.engine.reset_counters()

    def describe(self) -> dict[str, Any]:
        return {"engine": "openai" if self.generic else "vllm", "served": self.served, "context": self.context,
                "slots": self.engine.slots, "tool_parser": self.tool_parser,
                "reasoning_parser": self.reasoning_parser, "kv_cache_usage": self.engine.kv_usage}  # fmt: skip

    def new_id(self) -> str:
        return f"{self._ids.getrandbits(64):016x}"

    def new_call_id(self) -> str:
        return f"chatcmpl-tool-{self.new_id()}"

    # --- routes ---

    async def route(self, exchange: Exchange, faults: Mapping[str, Fault]) -> None:
        path = exchange.path
        if (
            self.api_key
            and exchange.method != "OPTIONS"
            and path.startswith(_GUARDED)
            and not self._authorized(exchange)
        ):
            await exchange.send_json(401, {"error": "Unauthorized"})
            return
        methods = self._methods(path)
        if not methods:
            await exchange.send_json(404, _NOT_FOUND, _VARY)
        elif exchange.method not in methods:
            allow = ("allow", ", ".join(methods))
            await exchange.send_method_not_allowed(allow)
        elif exchange.method == "GET" or path == "/ping":
            await self._get(exchange, path, faults)
        else:
            try:
                await self._post(exchange, path, faults)
            except ApiError as error:
                await exchange.send_json(error.status, error.body, _VARY)
            except EngineDied:
                dead = ApiError(500, validation.ENGINE_DEAD, "InternalServerError")
                await exchange.send_json(dead.status, dead.body, _VARY)

    def faults_for(self, path: str) -> dict[str, Fault]:
        return {} if path == "/v1/responses" and not self.responds else super().faults_for(path)

    def _authorized(self, exchange: Exchange) -> bool:
        scheme, _, key = exchange.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and key == (self.api_key or "")

    def _methods(self, path: str) -> tuple[str, ...]:
        always = {"/health": ("GET",), "/v1/models": ("GET",)}
        chat = {"/v1/chat/completions": ("POST",), "/v1/completions": ("POST",)}
        if self.responds:
            chat["/v1/responses"] = ("POST",)
        own = {"/ping": ("GET", "POST"), "/version": ("GET",), "/load": ("GET",), "/metrics": ("GET",),
               "/tokenize": ("POST",), "/detokenize": ("POST",)}  # fmt: skip
        shown: dict[str, tuple[str, ...]] = dict.fromkeys(self.shows, ("GET",))
        known = {**always, **(shown if self.generic else own)}
        if self.dev_mode:
            known |= {"/is_sleeping": ("GET",), "/sleep": ("POST",), "/wake_up": ("POST",)}
        known |= dict.fromkeys(_POOLING, ("POST",)) if self.pooling else chat
        return known.get(path, ())

    async def _get(self, exchange: Exchange, path: str, faults: Mapping[str, Fault]) -> None:
        if path in self.shows:
            await exchange.send_json(200, self.shows[path], _VARY)
        elif path in ("/health", "/ping"):
            await exchange.send(503 if "unhealthy" in faults else 200, b"", None, _VARY)
        elif path == "/version":
            await exchange.send_json(200, {"version": self.version}, _VARY)
        elif path == "/load":
            await exchange.send_json(200, {"server_load": 0}, _VARY)
        elif path == "/metrics":
            await exchange.send(200, self.metrics_page(), "text/plain; version=1.0.0; charset=utf-8", _VARY)
        elif path == "/is_sleeping":
            await exchange.send_json(200, {"is_sleeping": self.engine.sleep_level is not None}, _VARY)
        else:
            cards = [] if "no_models" in faults else [self._card(name) for name in self.served]
            await exchange.send_json(200, {"object": "list", "data": cards}, _VARY)

    def metrics_page(self) -> bytes:
        return render(self.engine, self.served[0], self.started_at, self.flags)

    def _card(self, name: str) -> dict[str, Any]:
        created = int(self.started_at)
        if self.generic:
            return {"id": name, "object": "model", "created": created, "owned_by": self.owned_by}
        permission = {
            "id": f"modelperm-{self.new_id()}", "object": "model_permission", "created": created,
            "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True,
            "allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False, "organization": "*",
            "group": None, "is_blocking": False,
        }  # fmt: skip
        return {
            "id": name, "object": "model", "created": created, "owned_by": "vllm", "root": self.served[0],
            "parent": None, "max_model_len": self.context, "permission": [permission],
        }  # fmt: skip

    def sleep(self, level: int = 1) -> None:
        """Raises ValueError where it is not in development mode, or there is no such level."""
        if not self.dev_mode or level not in (0, 1, 2):
            raise ValueError("VLLM_SERVER_DEV_MODE=1 is not set" if not self.dev_mode else "the levels are 0, 1 and 2")
        self.engine.sleep(level)
        self.changed()

    def wake_up(self) -> None:
        self.engine.wake_up()
        self.changed()

    async def _set_sleep(self, exchange: Exchange, path: str) -> None:
        """`POST /sleep?level=1`, `POST /wake_up`: as vLLM does it, with an empty answer."""
        if path == "/wake_up":
            self.wake_up()
        else:
            self.sleep(int(parse_qs(exchange.query).get("level", ["1"])[0]))
        await exchange.send(200, b"", None, _VARY)

    async def _post(self, exchange: Exchange, path: str, faults: Mapping[str, Fault]) -> None:
        if path in ("/sleep", "/wake_up"):
            await self._set_sleep(exchange, path)
            return
        body = validation.decode_body(exchange)
        validation.check_types(body)
        if "wrong_model" in faults:
            validation.check_model({"model": body.get("model") or "?"}, (), chat=False)
        if path == "/detokenize":
            await exchange.send_json(200, {"prompt": tokens.decode(body.get("tokens") or [])}, _VARY)
            return
        validation.check_model(body, self.served, chat=not self.pooling)
        if path == "/tokenize":
            await self._tokenize(exchange, body)
        elif path in _POOLING:
            await _POOLING[path](exchange, body, self.served[0], self.new_id(), self.context)
        elif path == "/v1/completions":
            await self._complete(exchange, body, faults)
        elif path == "/v1/responses":
            await self._chat(exchange, responses.to_chat(body), faults, body)
        else:
            await self._chat(exchange, body, faults)

    # --- chat ---

    async def _chat(
        self, exchange: Exchange, body: dict[str, Any], faults: Mapping[str, Fault], asked_as: Any = None
    ) -> None:
        """`asked_as`: the request for a response that `body` was made of; None = it is a chat."""
        validation.check_messages(body, self.served[0], self.vision)
        schemas = validation.check_tools(body, self.tool_parser, self.auto_tools)
        validation.check_format(body)
        validation.check_sampling(body, self.context)
        prompt, rendered = self.model.prompt(body)
        validation.check_window(prompt, self.context)
        thinking = self.model.thinks(body)
        shape = self._shape(exchange, body, faults, schemas, thinking)
        if asked_as is not None:
            shape = replace(shape, id=f"resp_{self.new_id()}")
        begun = beginning_of(body)
        asked = body if begun is None else {**body, "messages": body["messages"][:-1]}
        raw = self.model.raw(asked, thinking, faults)
        choices = [plan(raw, body, self.context - prompt, faults, begun)] * (body.get("n") or 1)
        answer = self._submit(exchange, choices, prompt, self.engine.cached_tokens(rendered, prompt), body)
        try:
            if body.get("stream"):
                stream = ChatStream(exchange, faults, shape, answer)
                if asked_as is not None:
                    stream = ResponseStream(exchange, faults, shape, answer, asked_as)
                await stream.run(lambda: self._waiting(exchange, answer))
            elif asked_as is not None:
                await self._whole(answer, faults)
                await send_response(exchange, faults, shape, answer, asked_as)
            else:
                await self._whole(answer, faults)
                await send_chat(exchange, faults, shape, answer)
        finally:
            answer.cancel()

    async def _whole(self, answer: Answer, faults: Mapping[str, Fault]) -> None:
        await answer.finished()
        if "error_event" in faults:
            raise EngineDied

    def _submit(
        self, exchange: Exchange, plans: List[Any], prompt: int, cached: int, body: Mapping[str, Any]
    ) -> Answer:
        if self.engine.full(len(plans)):
            self.engine.counters.rejected += 1
            text = "The engine is currently busy and cannot accept new requests."
            raise ApiError(503, f"{text} Please try again later or on a different instance.", "Service Unavailable")
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or self.context - prompt
        answer = Answer(self.engine, plans, prompt, cached, asked)
        exchange.on_lost.append(answer.cancel)
        return answer

    async def _waiting(self, exchange: Exchange, answer: Answer) -> None:
        """Wait for progress; a request that is still queued sends a comment now and then."""
        if not answer.queued:
            await answer.changed()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.keep_alive / self.speedup):
                await answer.changed()
                return
        if answer.queued and self.alive:
            await exchange.write(b": keep-alive\n\n")

    def _shape(
        self, exchange: Exchange, body: Mapping[str, Any], faults: Mapping[str, Fault], schemas: Any, thinking: bool
    ) -> Shape:
        options = body.get("stream_options") or {}
        return Shape(
            id=new_shape_id(exchange.headers, self.new_id(), "chatcmpl"),
            model=self.served[0],
            fingerprint=self.fingerprint,
            thinking=thinking,
            rules=None if "leak_think" in faults else self.model.rules,
            form=None if "leak_tools" in faults or not schemas else self.model.form,
            schemas=schemas,
            tools_live=body.get("tool_choice") != "none",
            choice=body.get("tool_choice") if schemas else None,
            new_id=self.new_call_id,
            include_usage=bool(options.get("include_usage")),
            continuous_usage=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
            include_reasoning=body.get("include_reasoning") is not False,
            created=seconds(),
        )

    # --- the rest ---

    async def _complete(self, exchange: Exchange, body: dict[str, Any], faults: Mapping[str, Fault]) -> None:
        validation.check_sampling(body, self.context)
        given = body.get("prompt")
        prompts = given if isinstance(given, list) and given and isinstance(given[0], str | list) else [given]
        texts = [p if isinstance(p, str) else tokens.decode(p or []) for p in prompts]
        counts = [tokens.count(t.encode()) for t in texts]
        for count in counts:
            validation.check_window(count, self.context)
        each = body.get("n") or 1
        body.setdefault("max_tokens", 16)
        choices = [
            plan(self._completion(text, body), body, self.context - count, faults)
            for text, count in zip(texts, counts, strict=True)
            for _ in range(each)
        ]
        shape = TextShape(
            id=new_shape_id(exchange.headers, self.new_id(), "cmpl"),
            model=self.served[0],
            fingerprint=self.fingerprint,
            created=seconds(),
            include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
            echoes=[t if body.get("echo") else "" for t in texts for _ in range(each)],
        )
        answer = self._submit(exchange, choices, sum(counts), 0, body)
        try:
            if body.get("stream"):
                stream = EventStream(exchange, faults, CONTENT_TYPE)
                writer = TextStream(stream, exchange, faults, shape)
                await writer.run(answer, lambda: self._waiting(exchange, answer))
            else:
                await self._whole(answer, faults)
                await send_text(exchange, faults, shape, answer)
        finally:
            answer.cancel()

    def _completion(self, prompt: str, body: Mapping[str, Any]) -> str:
        script = (body.get("vllm_xargs") or {}).get("script")
        return script if isinstance(script, str) else sentence(prompt, self.served[0])

    async def _tokenize(self, exchange: Exchange, body: Mapping[str, Any]) -> None:
        if "messages" in body:
            count, rendered = self.model.prompt(body)
            ids = (tokens.encode(rendered.decode(errors="replace")) + [0] * count)[:count]
        else:
            ids = tokens.encode(str(body.get("prompt", "")))
        strings = [tokens.decode([i]) for i in ids] if body.get("return_token_strs") else None
        answer = {"count": len(ids), "max_model_len": self.context, "tokens": ids, "token_strs": strings}
        await exchange.send_json(200, answer, _VARY)
