"""A simulated Ollama: its native API, and its lossy `/v1/chat/completions`."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from collections.abc import Sequence as List
from contextlib import AbstractAsyncContextManager
from typing import Any

from simulator.answer import Answer, plan
from simulator.base import Sim
from simulator.embeddings import BadInput, embed
from simulator.engine import Engine, EngineDied
from simulator.faults import Fault
from simulator.formats import format_of
from simulator.memory import Node
from simulator.ollama_chat import RUNNER_DIED, Turn, send_chat, send_generate, send_lossy, stamp, stream_chat
from simulator.ollama_loads import Runner, Runners
from simulator.ollama_request import (
    OllamaError,
    check_pictures,
    keep_alive_seconds,
    openai_request,
    overflow_of_runner,
    prompt_left,
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
    `native`: models with the chat template of their file, which the llama-server renders and parses since 0.30; the
    others have a Go template. `embeds`: models that embed, and do nothing else; None = each does both.

    `runners.shares`: what a loaded model takes of each node. One that does not fit pushes out what is loaded, unless
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
        native: List[str] = (),
        embeds: List[str] | None = None,
        speedup: float = 1.0,
    ) -> None:
        super().__init__(name, cold_start=cold_start, speedup=speedup)
        self.models, self.context, self.version = list(models), context, version
        self.thinks = [m for m in models if _thinks(m)] if thinks is None else list(thinks)
        self.vision, self.trained, self.remote = vision, trained, dict(remote or {})
        self.native, self.embeds = list(native), embeds
        self.engine = Engine(slots, prefill, decode, context=131072, speedup=speedup, on_change=self.changed)
        self.runners = Runners(load, speedup, self.changed)
        self.runners.shifts = self.runs_llama_server
        self._ids = random.Random(name)

    @property
    def runs_llama_server(self) -> bool:
        """Since 0.30 every model runs in a llama-server, whose errors Ollama repeats."""
        return tuple(int(part) for part in self.version.split("-")[0].split(".")) >= (0, 30)

    @property
    def loaded(self) -> dict[str, tuple[int, float]]:
        """Model -> (its window, Unix seconds at which it goes)."""
        return {name: (runner.window, runner.expires) for name, runner in self.runners.loaded.items()}

    @property
    def loads(self) -> int:
        """Models that were brought in."""
        return self.runners.loads

    def engines(self) -> list[Engine]:
        return [self.engine]

    def restarted(self) -> None:
        self.runners.clear()
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
            kind = {400: "invalid_request_error", 404: "not_found_error"}.get(error.status, "api_error")
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
            await exchange.send_json(
                200, {"models": [self._running(runner) for runner in self.runners.loaded.values()]}
            )
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
        model = self._known("?" if "wrong_model" in faults else body.get("model"), exchange.path)
        if handler is None:
            await exchange.send_json(200, self._show(model))
        else:
            await handler(exchange, {**body, "model": model}, faults)

    def _known(self, model: Any, path: str) -> str:
        for name in (model, f"{model}:latest"):
            if name in self.models:
                return str(name)
        if path == "/api/embed":
            raise OllamaError(404, f'model "{model}" not found, try pulling it first')
        raise OllamaError(404, f"model '{model}' not found")

    def _tag(self, model: str) -> dict[str, Any]:
        base, _, size = model.partition(":")
        details: dict[str, Any] = {"parent_model": "", "format": "gguf", "family": base, "families": [base],
                   "parameter_size": size.upper() or "8B", "quantization_level": "Q4_K_M"}  # fmt: skip
        if self.trained is not None:
            details["context_length"] = self.trained
        able = self._able(model) if model not in self.native else ["completion"]  # as it says of such a template
        more = {"capabilities": able} if self.runs_llama_server else {}
        elsewhere = {"remote_model": model, "remote_host": self.remote[model]} if model in self.remote else {}
        return {"name": model, "model": model, "modified_at": stamp(self.started_at), "size": 5_200_000_000,
                "digest": f"{_number(model):064x}", "details": details, **more, **elsewhere}  # fmt: skip

    def _running(self, runner: Runner) -> dict[str, Any]:
        tag = self._tag(runner.name)
        del tag["modified_at"]
        tag.pop("capabilities", None)
        until = stamp(runner.expires)
        return {**tag, "expires_at": until, "size_vram": 6_500_000_000, "context_length": runner.window}

    def _able(self, model: str) -> list[str]:
        if self.embeds is not None and model in self.embeds:
            return ["embedding"]
        thinks, sees = model in self.thinks, self.vision
        return ["completion", "tools", *(["thinking"] if thinks else []), *(["vision"] if sees else [])]

    def _show(self, model: str) -> dict[str, Any]:
        tag = self._tag(model)
        family = tag["details"]["family"]
        info = {"general.architecture": family, f"{family}.context_length": self.trained or 40960}
        texts = {"license": "", "modelfile": "", "parameters": "", "template": "{{ .Prompt }}"}
        return {**texts, "details": tag["details"], "model_info": info,
                "capabilities": self._able(model), "modified_at": tag["modified_at"]}  # fmt: skip

    # --- loading ---

    def held_on(self, node: Node) -> int:
        return self.runners.held_on(node) if self.resident else 0

    def unload(self, model: str) -> None:
        """As `ollama stop` does."""
        self.runners.unload(model)

    def _used(self, exchange: Exchange, body: Mapping[str, Any]) -> AbstractAsyncContextManager[tuple[int, float]]:
        """Its model with the asked window, but with none beyond what it was trained for."""
        options = body.get("options") or {}
        window = min(int(options.get("num_ctx") or self.context), self.trained or 2**31)
        return self.runners.used(exchange, body["model"], window, body)

    # --- answers ---

    async def _chat(self, exchange: Exchange, body: dict[str, Any], faults: Mapping[str, Fault]) -> None:
        empty = None if body.get("messages") else {"message": {"role": "assistant", "content": ""}}
        if await self._unloaded(exchange, body, empty):
            return
        async with self._used(exchange, body) as loaded:
            if empty is not None:
                await self._load_only(exchange, body, empty)
                return
            thinking = body["model"] in self.thinks and body.get("think") is not False
            turn = self._start(exchange, body, openai_request(body), thinking, loaded, faults)
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
        prompt = str(body.get("prompt") or "")
        empty = None if prompt else {"response": ""}
        if await self._unloaded(exchange, body, empty):
            return
        async with self._used(exchange, body) as loaded:
            if empty is not None:
                await self._load_only(exchange, body, empty)
                return
            script = {"script": sentence(prompt, body["model"]), **(body.get("vllm_xargs") or {})}
            request = {"messages": [{"role": "user", "content": prompt}]}
            turn = self._start(exchange, {**body, "vllm_xargs": script}, request, False, loaded, faults)
            try:
                await turn.answer.finished()
                await send_generate(exchange, faults, turn, streamed=body.get("stream", True))
            finally:
                turn.answer.cancel()

    async def _embed(self, exchange: Exchange, body: dict[str, Any], faults: Mapping[str, Fault]) -> None:
        async with self._used(exchange, body) as (window, took):
            if self.embeds is not None and body["model"] not in self.embeds:
                raise OllamaError(501, "This server does not support embeddings. Start it with `--embeddings`")
            try:
                answer = embed(body, body["model"], window)
            except BadInput as problem:
                raise OllamaError(400, str(problem)) from None
            durations = {"total_duration": int(took * 1e9), "load_duration": int(took * 1e9)}
            await exchange.send_json(200, {**answer, **durations})

    async def _lossy_chat(self, exchange: Exchange, body: dict[str, Any], faults: Mapping[str, Fault]) -> None:
        """`/v1`: tool_choice, num_ctx, max_completion_tokens and n are ignored, calls come in one piece."""
        async with self._used(exchange, {"model": body["model"]}) as loaded:
            request = {k: v for k, v in body.items() if k != "tool_choice"}
            thinking = body["model"] in self.thinks and body.get("reasoning_effort") != "none"
            plain = {k: v for k, v in body.items() if k not in ("options", "truncate")}
            turn = self._start(exchange, plain, request, thinking, loaded, faults)
            try:
                await turn.answer.finished()
                await send_lossy(exchange, faults, turn, body)
            finally:
                turn.answer.cancel()

    async def _unloaded(self, exchange: Exchange, body: Mapping[str, Any], empty: Mapping[str, Any] | None) -> bool:
        """Was it a request without a prompt and with `keep_alive: 0`, which unloads the model?"""
        if empty is None or keep_alive_seconds(body.get("keep_alive") or 0 if "keep_alive" in body else 1) > 0:
            return False
        self.unload(body["model"])
        await self._load_only(exchange, body, empty, "unload")
        return True

    async def _load_only(
        self, exchange: Exchange, body: Mapping[str, Any], empty: Mapping[str, Any], reason: str = "load"
    ) -> None:
        head = {"model": body["model"], "created_at": stamp(time.time())}
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
        native = model in self.native
        if self.runs_llama_server and not self.vision:
            check_pictures(request, native=native)
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
        prompt = prompt_tokens(request, thoughts=not native)
        if self.runs_llama_server and prompt >= window:
            left = prompt_left(request, window, thoughts=not native)
            if body.get("truncate") is False or (native and left is None):
                raise OllamaError(400, overflow_of_runner(prompt, window))
            prompt = left or window // 2 + 2  # one message alone is too long: half the window is left of it
        prompt = min(prompt, window)
        answer = Answer(self.engine, [plan(raw, sampling, max(1, window), faults)], prompt, 0, limit or window)
        exchange.on_lost.append(answer.cancel)
        tools = bool(request.get("tools")) and "leak_tools" not in faults
        kind = "old" if not self.runs_llama_server else "native" if native else "go"
        return Turn(model, answer, rules, tools, took, f"{self._ids.getrandbits(32):08x}", kind)


def _thinks(model: str) -> bool:
    return any(f in model for f in ("qwen3", "deepseek-r1", "gpt-oss")) and "instruct" not in model


def _number(text: str) -> int:
    """A stable number for a name."""
    return int.from_bytes(text.encode()[:24], "big")
