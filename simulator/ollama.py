"""A simulated Ollama: its native API, and its lossy `/v1/chat/completions`."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping
from collections.abc import Sequence as List
from typing import Any

from simulator.answer import Answer, plan
from simulator.base import Sim
from simulator.embeddings import BadInput, embed
from simulator.engine import Engine, EngineDied
from simulator.faults import Fault
from simulator.formats import format_of
from simulator.memory import GIB, Node, Share
from simulator.ollama_chat import RUNNER_DIED, Turn, send_chat, send_generate, send_lossy, stamp, stream_chat
from simulator.ollama_request import (
    OllamaError,
    keep_alive_seconds,
    openai_request,
    overflow_of_runner,
    prompt_tokens,
)
from simulator.parsers import reasoning_of
from simulator.replies import Voice, raw_reply, sentence
from simulator.server import Exchange


class SimOllama(Sim):
    """One Ollama server. `models` are its names, `context` the window of a model if no request sets `num_ctx`,
    `load` the simulated seconds that loading a model takes, `slots` OLLAMA_NUM_PARALLEL. `thinks`: models that
    think; default: names with qwen3, deepseek-r1 or gpt-oss, but not instruct ones. `trained`: the window that the
    models were trained for, which it reports from 0.30 on. `remote`: models that run elsewhere -> the URL of that host.

    `model_shares`: what a loaded model takes of each node. One that does not fit pushes out what is loaded, unless
    requests are running; then the request is refused.
    """

    def __init__(
        self,
        name: str = "ollama",
        models: List[str] = ("qwen3:8b",),
        context: int = 4096,
        slots: int = 1,
        prefill: float = 1e6,
        decode: float = 1e5,
        load: float = 0.0,
        version: str = "0.12.6",
        cold_start: float = 0.0,
        *,
        thinks: List[str] | None = None,
        vision: bool = False,
        trained: int | None = None,
        remote: Mapping[str, str] | None = None,
        speedup: float = 1.0,
    ) -> None:
        super().__init__(name, cold_start=cold_start, speedup=speedup)
        self.models, self.context, self.load_seconds, self.version = list(models), context, load, version
        self.thinks = [m for m in models if _thinks(m)] if thinks is None else list(thinks)
        self.vision, self.trained, self.remote = vision, trained, dict(remote or {})
        self.loaded: dict[str, tuple[int, float]] = {}  # model -> (num_ctx, unload at)
        self.engine = Engine(slots, prefill, decode, context=131072, speedup=speedup, on_change=self.changed)
        self.model_shares: Mapping[str, List[Share]] = {}
        self.loads = 0  # models that were brought in
        self._shifts: dict[str, bool] = {}  # model -> the `shift` that it was loaded with
        self._loading: dict[str, asyncio.Lock] = {}
        self._being_loaded: set[str] = set()
        self._ids = random.Random(name)

    @property
    def runs_llama_server(self) -> bool:
        """Since 0.30 every model runs in a llama-server, whose errors Ollama repeats."""
        return tuple(int(part) for part in self.version.split("-")[0].split(".")) >= (0, 30)

    def engines(self) -> list[Engine]:
        return [self.engine]

    def restarted(self) -> None:
        self.loaded.clear()
        self._being_loaded.clear()
        self.engine.reset_counters()

    def describe(self) -> dict[str, Any]:
        return {"engine": "ollama", "models": self.models, "loaded": {m: c for m, (c, _) in self.loaded.items()}}

    # --- routes ---

    async def route(self, exchange: Exchange, faults: Mapping[str, Fault]) -> None:
        try:
            if exchange.method in ("GET", "HEAD"):
                await self._get(exchange, faults)
            elif exchange.method == "POST":
                await self._post(exchange, faults)
            else:
                await exchange.send(405, b"405 method not allowed", "text/plain")
        except OllamaError as error:
            await self._refuse(exchange, error)
        except EngineDied:
            await self._refuse(exchange, OllamaError(500, RUNNER_DIED))

    async def _refuse(self, exchange: Exchange, error: OllamaError) -> None:
        problem: Any = error.message
        if exchange.path.startswith("/v1/"):
            kind = "not_found_error" if error.status == 404 else "api_error"
            problem = {"message": error.message, "type": kind, "param": None, "code": None}
        await exchange.send_json(error.status, {"error": problem})

    async def _get(self, exchange: Exchange, faults: Mapping[str, Fault]) -> None:
        path = exchange.path
        if path == "/":
            await exchange.send(200, b"Ollama is running", "text/plain; charset=utf-8")
        elif path == "/api/version":
            await exchange.send_json(200, {"version": self.version})
        elif path == "/api/tags":
            names = [] if "no_models" in faults else self.models
            await exchange.send_json(200, {"models": [self._tag(m) for m in names]})
        elif path == "/api/ps":
            await exchange.send_json(200, {"models": [self._running(m) for m in self._still_loaded()]})
        elif path == "/v1/models":
            cards = [
                {"id": m, "object": "model", "created": int(self.started_at), "owned_by": "library"}
                for m in self.models
            ]
            await exchange.send_json(200, {"object": "list", "data": cards})
        else:
            await exchange.send(404, b"404 page not found", "text/plain")

    async def _post(self, exchange: Exchange, faults: Mapping[str, Fault]) -> None:
        handlers = {
            "/api/chat": self._chat,
            "/api/generate": self._generate,
            "/api/embed": self._embed,
            "/v1/chat/completions": self._lossy_chat,
        }
        handler = handlers.get(exchange.path)
        if handler is None and exchange.path != "/api/show":
            await exchange.send(404, b"404 page not found", "text/plain")
            return
        try:
            body = json.loads(exchange.body)
        except (ValueError, RecursionError) as problem:
            raise OllamaError(400, f"invalid request body: {problem}") from None
        model = self._known("?" if "wrong_model" in faults else body.get("model"))
        if handler is None:
            await exchange.send_json(200, self._show(model))
        else:
            await handler(exchange, {**body, "model": model}, faults)

    def _known(self, model: Any) -> str:
        for name in (model, f"{model}:latest"):
            if name in self.models:
                return str(name)
        raise OllamaError(404, f"model '{model}' not found")

    def _tag(self, model: str) -> dict[str, Any]:
        base, _, size = model.partition(":")
        details: dict[str, Any] = {"parent_model": "", "format": "gguf", "family": base, "families": [base],
                   "parameter_size": size.upper() or "8B", "quantization_level": "Q4_K_M"}  # fmt: skip
        if self.trained is not None:
            details["context_length"] = self.trained
        elsewhere = {"remote_model": model, "remote_host": self.remote[model]} if model in self.remote else {}
        return {"name": model, "model": model, "modified_at": stamp(self.started_at), "size": 5_200_000_000,
                "digest": f"{_number(model):064x}", "details": details, **elsewhere}  # fmt: skip

    def _running(self, model: str) -> dict[str, Any]:
        window, until = self.loaded[model]
        tag = self._tag(model)
        del tag["modified_at"]
        return {**tag, "expires_at": stamp(until), "size_vram": 6_500_000_000, "context_length": window}

    def _show(self, model: str) -> dict[str, Any]:
        able = [
            "completion",
            "tools",
            *(["thinking"] if model in self.thinks else []),
            *(["vision"] if self.vision else []),
        ]
        tag = self._tag(model)
        family = tag["details"]["family"]
        info = {"general.architecture": family, f"{family}.context_length": self.trained or 40960}
        texts = {"license": "", "modelfile": "", "parameters": "", "template": "{{ .Prompt }}"}
        return {**texts, "details": tag["details"], "model_info": info,
                "capabilities": able, "modified_at": tag["modified_at"]}  # fmt: skip

    # --- loading ---

    def held_on(self, node: Node) -> int:
        models = {*self._still_loaded(), *self._being_loaded} if self.resident else set()
        shares = (share for model in models for share in self.model_shares.get(model, ()))
        return sum(share.holds for share in shares if share.node is node)

    def unload(self, model: str) -> None:
        """As `ollama stop` does."""
        self.loaded.pop(model, None)
        self.changed()

    def _still_loaded(self) -> list[str]:
        now = time.time()
        self.loaded = {m: (c, until) for m, (c, until) in self.loaded.items() if until > now}
        return list(self.loaded)

    async def _load(self, model: str, body: Mapping[str, Any]) -> tuple[int, float]:
        """Load the model with the asked window, but with none beyond what it was trained for. Since 0.30 `shift` is
        part of how it is loaded. (window, seconds that loading took)"""
        options = body.get("options") or {}
        window = min(int(options.get("num_ctx") or self.context), self.trained or 2**31)
        shift = body.get("shift") is not False or not self.runs_llama_server
        keep = keep_alive_seconds(body.get("keep_alive", 300)) / self.speedup
        started = time.monotonic()
        async with self._loading.setdefault(model, asyncio.Lock()):
            self._still_loaded()
            if self.loaded.get(model, (0, 0.0))[0] != window or self._shifts[model] != shift:
                await self._bring_in(model)
                self._shifts[model] = shift
                self.loads += 1
            self.loaded[model] = (window, time.time() + keep)
        self.changed()
        return window, time.monotonic() - started

    async def _bring_in(self, model: str) -> None:
        """Raises OllamaError when its memory is not free."""
        self.unload(model)
        for share in self.model_shares.get(model, ()):
            if share.holds > share.node.free() and not self.engine.running:
                self.loaded.clear()
            free = share.node.free()
            if share.holds > free:
                wanted = f"{share.holds / GIB:.1f} GiB) than is available ({max(free, 0) / GIB:.1f} GiB)"
                raise OllamaError(500, f"model requires more system memory ({wanted}")
        self._being_loaded.add(model)
        try:
            await asyncio.sleep(self.load_seconds / self.speedup)
        finally:
            self._being_loaded.discard(model)

    # --- answers ---

    async def _chat(self, exchange: Exchange, body: dict[str, Any], faults: Mapping[str, Fault]) -> None:
        window, took = await self._load(body["model"], body)
        if not body.get("messages"):
            await self._load_only(exchange, body, {"message": {"role": "assistant", "content": ""}})
            return
        thinking = body["model"] in self.thinks and body.get("think") is not False
        turn = self._start(exchange, body, openai_request(body), thinking, (window, took), faults)
        try:
            if body.get("stream", True):
                await stream_chat(exchange, faults, turn)
            else:
                await turn.answer.finished()
                if "error_event" in faults:
                    raise EngineDied
                await send_chat(exchange, faults, turn)
        finally:
            turn.answer.cancel()

    async def _generate(self, exchange: Exchange, body: dict[str, Any], faults: Mapping[str, Fault]) -> None:
        window, took = await self._load(body["model"], body)
        prompt = str(body.get("prompt") or "")
        if not prompt:
            await self._load_only(exchange, body, {"response": ""})
            return
        script = {"script": sentence(prompt, body["model"]), **(body.get("vllm_xargs") or {})}
        request = {"messages": [{"role": "user", "content": prompt}]}
        turn = self._start(exchange, {**body, "vllm_xargs": script}, request, False, (window, took), faults)
        try:
            await turn.answer.finished()
            await send_generate(exchange, faults, turn, streamed=body.get("stream", True))
        finally:
            turn.answer.cancel()

    async def _embed(self, exchange: Exchange, body: dict[str, Any], faults: Mapping[str, Fault]) -> None:
        window, took = await self._load(body["model"], body)
        try:
            answer = embed(body, body["model"], window)
        except BadInput as problem:
            raise OllamaError(400, str(problem)) from None
        durations = {"total_duration": int(took * 1e9), "load_duration": int(took * 1e9)}
        await exchange.send_json(200, {**answer, **durations})

    async def _lossy_chat(self, exchange: Exchange, body: dict[str, Any], faults: Mapping[str, Fault]) -> None:
        """`/v1`: tool_choice and num_ctx are ignored, calls come in one piece, a streamed call ends with `stop`."""
        window, took = await self._load(body["model"], {})
        request = {k: v for k, v in body.items() if k != "tool_choice"}
        thinking = body["model"] in self.thinks and body.get("reasoning_effort") != "none"
        plain = {k: v for k, v in body.items() if k != "options"}
        turn = self._start(exchange, plain, request, thinking, (window, took), faults)
        try:
            await turn.answer.finished()
            await send_lossy(exchange, faults, turn, body)
        finally:
            turn.answer.cancel()

    async def _load_only(self, exchange: Exchange, body: Mapping[str, Any], empty: Mapping[str, Any]) -> None:
        """A request without a prompt loads the model, or unloads it with `keep_alive: 0`."""
        unload = keep_alive_seconds(body.get("keep_alive", 300)) == 0
        if unload:
            self.unload(body["model"])
        head = {"model": body["model"], "created_at": stamp(time.time())}
        reason = "unload" if unload else "load"
        await exchange.send_json(200, {**head, **empty, "done": True, "done_reason": reason})

    def _start(
        self,
        exchange: Exchange,
        body: Mapping[str, Any],
        request: Mapping[str, Any],
        thinking: bool,
        loaded: tuple[int, float],
        faults: Mapping[str, Fault],
    ) -> Turn:
        """Put a request into the engine. A prompt over the window is cut silently, as Ollama does, or refused by the
        llama-server."""
        model, (window, took) = body["model"], loaded
        rules = reasoning_of("qwen3") if thinking else None
        script = (body.get("vllm_xargs") or {}).get("script")
        raw = (
            script
            if isinstance(script, str)
            else raw_reply(request, Voice(model, format_of("hermes"), rules), thinking)
        )
        if "empty_turn" in faults:
            raw = ""
        options = body.get("options") or {}
        limit = options.get("num_predict") or body.get("max_tokens")
        limit = limit if limit and limit > 0 else None
        sampling = {"max_tokens": limit, "stop": options.get("stop") or body.get("stop")}
        prompt = prompt_tokens(request)
        if prompt >= window and self.runs_llama_server and body.get("truncate") is False:
            raise OllamaError(400, overflow_of_runner(prompt, window))
        prompt = min(prompt, window)
        answer = Answer(self.engine, [plan(raw, sampling, max(1, window), faults)], prompt, 0, limit or window)
        exchange.on_lost.append(answer.cancel)
        tools = bool(request.get("tools")) and "leak_tools" not in faults
        return Turn(model, answer, rules, tools, took, f"{self._ids.getrandbits(32):08x}")


def _thinks(model: str) -> bool:
    return any(f in model for f in ("qwen3", "deepseek-r1", "gpt-oss")) and "instruct" not in model


def _number(text: str) -> int:
    """A stable number for a name."""
    return int.from_bytes(text.encode()[:24], "big")
