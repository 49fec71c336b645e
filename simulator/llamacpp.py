"""A simulated llama-server of October 2026: what it shows of itself, its slots on one memory, and its errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from simulator.chat import POOL_FULL_TEXT
from simulator.engine import Engine, EngineDied, PoolFull, Sequence
from simulator.faults import Fault
from simulator.server import Exchange
from simulator.validation import ApiError
from simulator.vllm import SimVllm

BUILD = "b1-0c1e57098"
_NO_SLOTS = "This server does not support slots endpoint. Start it with `--slots`"
_NO_METRICS = "This server does not support metrics endpoint. Start it with `--metrics`"
_NO_EMBEDDINGS = "This server does not support embeddings. Start it with `--embeddings`"
_NO_RERANKING = "This server does not support reranking. Start it with `--reranking`"
_LOOKS = ("/slots", "/metrics")  # are answered by the engine's own loop
_TYPES = {400: "invalid_request_error", 404: "not_found_error", 501: "not_supported_error", 503: "unavailable_error"}


class SimLlama(SimVllm):
    """`-c CONTEXT` with `slots` slots. `unified`: they share its tokens (the default where llama-server chooses the
    number of slots itself), else each has an even part. `sees_slots`, `metrics`: with `--slots`, `--metrics`.
    `loads`: it is loading its model, and answers 503 to everything. `status`: model -> loaded, unloaded, of a router;
    a request or a look loads its model (`loadings` are counted)."""

    def __init__(
        self,
        name: str = "llama",
        served: tuple[str, ...] = ("qwen3-taught",),
        context: int = 4096,
        slots: int = 4,
        *,
        unified: bool = True,
        sees_slots: bool = True,
        metrics: bool = False,
        **more: Any,
    ) -> None:
        window = context if unified else context // slots
        super().__init__(name, served, window, slots, generic=True, reasoning_parser="qwen3", **more)
        self.engine.pool = context if unified else None
        self.status: dict[str, str] = {}
        self._loadings = 0
        self.sees_slots, self.metrics, self.loads = sees_slots, metrics, False

    @property
    def loadings(self) -> int:
        return self._loadings

    def _load(self, name: object) -> None:
        if self.status.get(str(name)) == "unloaded":
            self.status[str(name)] = "loaded"
            self._loadings += 1

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "engine": "llamacpp"}

    async def route(self, exchange: Exchange, faults: Mapping[str, Fault]) -> None:
        query = parse_qs(exchange.query)
        if self.status and exchange.path in (*_LOOKS, "/props"):
            name = query.get("model", [""])[0]
            if query.get("autoload") != ["false"]:
                self._load(name)
            if self.status.get(name) != "loaded":
                await self._refuse(exchange, 400, "model is not loaded")
                return
        if self.loads:
            await self._refuse(exchange, 503, "Loading model")
        elif exchange.path in _LOOKS and self.engine.hung:
            await self._hang(exchange, "hang_engine")
        elif exchange.path == "/slots" and exchange.method == "GET":
            await self._slots(exchange)
        elif exchange.path == "/metrics" and exchange.method == "GET":
            await self._metrics(exchange)
        elif exchange.path == "/props" and exchange.method == "GET":
            await exchange.send_json(200, self._props())
        elif exchange.path == "/v1/embeddings" and not self.pooling:
            await self._refuse(exchange, 501, _NO_EMBEDDINGS)
        elif exchange.path in ("/v1/rerank", "/rerank") and not self.pooling:
            await self._refuse(exchange, 501, _NO_RERANKING)
        else:
            await super().route(exchange, faults)

    async def _refuse(self, exchange: Exchange, status: int, message: str, **more: int) -> None:
        kind = _TYPES.get(status, "server_error")
        await exchange.send_json(status, {"error": {"code": status, "message": message, "type": kind, **more}})

    def _card(self, name: str) -> dict[str, Any]:
        meta = {"vocab_type": 2, "n_vocab": 3136, "n_ctx": self.context, "n_ctx_train": 8192, "n_embd": 96}
        card = {"id": name, "aliases": [name], "tags": [], "object": "model", "created": int(self.started_at)}
        if name in self.status:
            card["status"] = {"value": self.status[name], "args": []}
            if self.status[name] != "loaded":
                return {**card, "owned_by": "llamacpp"}
        return {**card, "owned_by": "llamacpp", "meta": meta}

    def _props(self) -> dict[str, Any]:
        return {
            "default_generation_settings": {"params": {}, "n_ctx": self.context},
            "total_slots": self.engine.slots,
            "model_alias": self.served[0],
            "modalities": {"vision": self.vision, "video": False, "audio": False},
            "endpoint_slots": self.sees_slots,
            "endpoint_metrics": self.metrics,
            "build_info": BUILD,
            "is_sleeping": False,
        }

    async def _slots(self, exchange: Exchange) -> None:
        if not self.sees_slots:
            await self._refuse(exchange, 501, _NO_SLOTS)
            return
        running = self.engine.running
        idle = [None] * (self.engine.slots - len(running))
        await exchange.send_json(200, [self._slot(i, s) for i, s in enumerate([*running, *idle])])

    def _slot(self, number: int, sequence: Sequence | None) -> dict[str, Any]:
        slot = {"id": number, "n_ctx": self.context, "speculative": False, "is_processing": sequence is not None}
        if sequence is None:
            return slot
        token = {"has_next_token": True, "has_new_line": False, "n_remain": -1, "n_decoded": sequence.made}
        task = {"id_task": id(sequence) % 10**6, "n_prompt_tokens": sequence.kv, "n_prompt_tokens_processed": 0}
        return {**slot, **task, "params": {}, "next_token": [token]}

    async def _metrics(self, exchange: Exchange) -> None:
        if not self.metrics:
            await self._refuse(exchange, 501, _NO_METRICS)
            return
        page = "".join(f"# TYPE {name} {kind}\n{name} {value}\n" for name, kind, value in _counters(self.engine))
        await exchange.send(200, page.encode(), "text/plain; version=0.0.4")

    async def _post(self, exchange: Exchange, path: str, faults: Mapping[str, Fault]) -> None:
        try:
            await super()._post(exchange, path, faults)
        except PoolFull:
            await self._refuse(exchange, 500, POOL_FULL_TEXT)
        except EngineDied:
            await exchange.cut()
        except ApiError as error:
            await self._refuse(exchange, error.status, str(error.body["error"]["message"]))

    async def _chat(
        self, exchange: Exchange, body: dict[str, Any], faults: Mapping[str, Fault], asked_as: Any = None
    ) -> None:
        self._load(body.get("model"))
        prompt, _ = self.model.prompt(body)
        if prompt >= self.context:
            text = f"request ({prompt} tokens) exceeds the available context size ({self.context} tokens)"
            await self._refuse(exchange, 400, f"{text}, try increasing it", n_prompt_tokens=prompt, n_ctx=self.context)
            return
        if isinstance(body.get("tool_choice"), dict):
            body["tool_choice"] = "auto"  # a named tool is not forced
        await super()._chat(exchange, {**body, "model": self.served[0]}, faults)


def _counters(engine: Engine) -> list[tuple[str, str, float]]:
    counters = engine.counters
    return [
        ("llamacpp:prompt_tokens_total", "counter", counters.prompt_tokens),
        ("llamacpp:tokens_predicted_total", "counter", counters.generation_tokens),
        ("llamacpp:n_decode_total", "counter", counters.generation_tokens),
        ("llamacpp:requests_processing", "gauge", len(engine.running)),
        ("llamacpp:requests_deferred", "gauge", len(engine.waiting)),
    ]
