"""`/v1/completions` as vLLM 0.32 writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from simulator.answer import CUTS, Answer
from simulator.chat import broken, error_event
from simulator.engine import EngineDied
from simulator.faults import Fault
from simulator.server import Exchange
from simulator.wire import DONE, EventStream, break_off, send_body

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class TextShape:
    id: str
    model: str
    fingerprint: str
    created: int
    include_usage: bool
    echoes: list[str]  # put before each choice's text (`echo`), else ""


class TextStream:
    """Writes one text completion as events."""

    def __init__(self, stream: EventStream, exchange: Exchange, faults: Mapping[str, Fault], shape: TextShape) -> None:
        self.stream, self.exchange, self.faults, self.shape = stream, exchange, faults, shape

    async def run(self, answer: Answer, keep_alive: Callable[[], Any]) -> None:
        """Stream the whole answer. Raises EngineDied when the engine dies before the head is sent."""
        if "hang_before" in self.faults:
            await answer.begun()
        await self.stream.open()
        try:
            await self._write_events(answer, keep_alive)
        except EngineDied as died:
            await self._break(broken(died), answer)

    async def _write_events(self, answer: Answer, keep_alive: Callable[[], Any]) -> None:
        shape, seen = self.shape, [0] * len(answer.plans)
        cut = next((self.faults[k] for k in CUTS if k in self.faults), None)
        open_choices = set(range(len(answer.plans)))
        while open_choices:
            events: list[bytes] = []
            for index in sorted(open_choices):
                sequence, plan = answer.sequences[index], answer.plans[index]
                while seen[index] < sequence.made and not (cut and sum(seen) >= cut.after):
                    text = plan.tokens[seen[index]]
                    if seen[index] == 0:
                        text = shape.echoes[index] + text
                    seen[index] += 1
                    ended = sequence.finish is not None and seen[index] == sequence.made
                    events.append(self._event(index, text, sequence.finish if ended else None, plan.stop_reason))
                    if ended:
                        open_choices.discard(index)
                if sequence.finish is not None and not sequence.made:
                    events.append(self._event(index, "", sequence.finish, None))
                    open_choices.discard(index)
            await self.stream.send(events)
            if cut and (sum(seen) >= cut.after or answer.ended):
                await self._break(cut, answer)
                return
            if not events:
                await keep_alive()
        tail = []
        if shape.include_usage or "unasked_usage" in self.faults:
            usage = {"usage": answer.usage(), "system_fingerprint": shape.fingerprint}
            tail.append(self._wrap([], usage))
        if "no_done" not in self.faults:
            tail.append(DONE)
        await self.stream.send(tail)
        await self.stream.end()

    async def _break(self, cut: Fault, answer: Answer) -> None:
        answer.cancel()
        await break_off(self.exchange, self.stream, cut, [error_event(cut), DONE])

    def _event(self, index: int, text: str, finish: str | None, stop_reason: str | None) -> bytes:
        choice = {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": stop_reason if finish == "stop" else None,
            "prompt_token_ids": None,
            "token_ids": None,
        }
        closing = finish is not None and not self.shape.include_usage  # the usage chunk has it when there is one
        return self._wrap([choice], {"system_fingerprint": self.shape.fingerprint} if closing else {})

    def _wrap(self, choices: list[dict[str, Any]], tail: dict[str, Any]) -> bytes:
        shape = self.shape
        head = {"id": shape.id, "object": "text_completion", "created": shape.created, "model": shape.model}
        return b"data: " + _encode({**head, "choices": choices, **tail}) + b"\n\n"


async def send_text(exchange: Exchange, faults: Mapping[str, Fault], shape: TextShape, answer: Answer) -> None:
    choices = [
        {
            "index": i,
            "text": shape.echoes[i] + "".join(answer.produced(i)),
            "logprobs": None,
            "finish_reason": None if "end_without_finish" in faults else answer.sequences[i].finish,
            "stop_reason": plan.stop_reason if answer.sequences[i].finish == "stop" else None,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "routed_experts": None,
        }
        for i, plan in enumerate(answer.plans)
    ]
    body = {
        "id": shape.id,
        "object": "text_completion",
        "created": shape.created,
        "model": shape.model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": shape.fingerprint,
        "usage": {**answer.usage(), "prompt_tokens_details": None, "completion_tokens_details": None},
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }
    await send_body(exchange, faults, _encode(body))
