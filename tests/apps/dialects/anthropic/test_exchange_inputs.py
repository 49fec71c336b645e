"""Messages whose answer is begun already, and messages with PDFs: which backends get them, and what a client is told
where none can."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from tests.scripted import RawReply, Script, ScriptedBackend, Turn, json_answer, raw_post, scripted
from tests.support import RunningGateway, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUTES = """
backends:
  vllm: {{url: "{vllm}", model: served/model}}
  thinker: {{url: "{vllm}", model: served/model, thinking: always}}
  llama: {{url: "{llama}", engine: llamacpp, model: served/model}}
  other: {{url: "{other}", engine: openai, cloud: false, model: served/model}}
  reader: {{url: "{other}", model: served/model, pdf: true}}
  shut: {{url: "{other}", engine: openai, cloud: false, model: served/model, pdf: false}}
aliases:
  continues: [llama, vllm]
  thinks: {{use: [vllm], thinking: "on"}}
  always: [thinker]
  begins-anew: [llama]
  reads: [vllm, llama, shut, reader]
  reads-none: [vllm, llama]
  unknown: [vllm, other]
  learns: [other, reader]
"""
BEGUN = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The answer"}]
SOURCE = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
PDF = [{"role": "user", "content": [{"type": "text", "text": "read"}, {"type": "document", "source": SOURCE}]}]
FILE = {"type": "file", "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}
UNSUPPORTED = "Unsupported chat content part type: 'file'. Supported types: audio_url, image_url, text."


async def unexpected(turn: Turn) -> None:
    raise AssertionError("nobody was to ask this backend")


def answers(text: str) -> Script:
    async def play(turn: Turn) -> None:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": len(text)}
        await turn.send(json_answer({"id": "up", "model": "served/model", "choices": [choice], "usage": usage}))

    return play


async def refuses(turn: Turn) -> None:
    await turn.send(json_answer({"error": {"message": UNSUPPORTED, "code": 400}}, "400 Bad Request"))


@dataclass
class Stage:
    gateway: RunningGateway
    backends: dict[str, ScriptedBackend]

    async def ask(self, model: str, messages: list[dict[str, Any]], **more: Any) -> RawReply:
        body = {"model": model, "max_tokens": 50, "messages": messages, **more}
        return await raw_post(self.gateway.url, body, "/v1/messages")

    async def chat(self, model: str, messages: list[dict[str, Any]], **more: Any) -> RawReply:
        return await raw_post(self.gateway.url, {"model": model, "messages": messages, **more}, "/v1/chat/completions")

    def asked(self, name: str) -> list[dict[str, Any]]:
        return [turn.json for turn in self.backends[name].turns]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def theatre() -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        found = {
            name: await stack.enter_async_context(scripted(unexpected, apart=True))
            for name in ("vllm", "llama", "other")
        }
        text = ROUTES.format(**{name: one.url for name, one in found.items()})
        gateway = await stack.enter_async_context(running_gateway(text))
        await gateway.until_ready("vllm", "thinker", "llama", "other", "reader", "shut")
        yield Stage(gateway, found)


@pytest_asyncio.fixture(loop_scope="module")
async def stage(theatre: Stage) -> AsyncIterator[Stage]:
    for backend in theatre.backends.values():
        backend.play(unexpected)
    yield theatre
    await theatre.gateway.until(theatre.gateway.idle)


# -- the beginning of the answer --------------------------------------------------------------------------------------


async def test_a_backend_that_continues_is_asked_to(stage: Stage) -> None:
    stage.backends["vllm"].play(answers(" is 4."))
    reply = await stage.ask("continues", BEGUN)
    assert reply.json["content"] == [{"type": "text", "text": " is 4."}]
    assert reply.headers["x-gateway-backend"] == "vllm"
    [sent] = stage.asked("vllm")
    assert sent["messages"] == BEGUN
    assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}
    assert "thinking" not in sent


async def test_thinking_stays_off_also_where_the_alias_demands_it(stage: Stage) -> None:
    stage.backends["vllm"].play(answers(" is 4."))
    assert (await stage.ask("thinks", BEGUN)).status == 200
    assert stage.asked("vllm")[0]["chat_template_kwargs"] == {"enable_thinking": False}


async def test_a_text_to_which_nothing_is_missing_is_an_answer(stage: Stage) -> None:
    stage.backends["vllm"].play(answers(""))
    reply = await stage.ask("continues", BEGUN)
    assert (reply.status, reply.json["content"]) == (200, [])
    assert len(stage.asked("vllm")) == 1
    assert stage.gateway.metric("gateway_violations_total", backend="vllm", kind="empty") == 0


@pytest.mark.parametrize(
    ("alias", "said"), [("begins-anew", "llama does not continue"), ("always", "kept from thinking")]
)
async def test_where_none_continues_the_client_is_told(stage: Stage, alias: str, said: str) -> None:
    reply = await stage.ask(alias, BEGUN)
    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
    assert said in reply.json["error"]["message"]


async def test_a_chat_is_continued_only_if_it_asks_for_it(stage: Stage) -> None:
    stage.backends["llama"].play(answers("The answer is 4."))
    reply = await stage.chat("continues", BEGUN)
    assert reply.headers["x-gateway-backend"] == "llama"
    assert "continue_final_message" not in stage.asked("llama")[0]
    stage.backends["vllm"].play(answers(" is 4."))
    asks = {"continue_final_message": True, "add_generation_prompt": False}
    reply = await stage.chat("continues", BEGUN, **asks)
    assert reply.headers["x-gateway-backend"] == "vllm"
    assert "chat_template_kwargs" not in stage.asked("vllm")[0]
    assert (await stage.chat("begins-anew", BEGUN, **asks)).json["error"]["code"] == "input_unsupported"


# -- PDFs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alias", "backend"), [("reads", "reader"), ("unknown", "other")])
async def test_a_pdf_goes_where_it_is_taken(stage: Stage, alias: str, backend: str) -> None:
    stage.backends["other"].play(answers("It is empty."))
    reply = await stage.ask(alias, PDF)
    assert reply.headers["x-gateway-backend"] == backend
    [sent] = stage.asked("other")
    assert sent["messages"][0]["content"] == [{"type": "text", "text": "read"}, FILE]
    assert not [name for name in sent if name.startswith("x_gateway")]


async def test_where_none_takes_it_the_block_is_named(stage: Stage) -> None:
    reply = await stage.ask("reads-none", PDF)
    error = reply.json["error"]
    assert (reply.status, error["type"], error["code"]) == (400, "invalid_request_error", "input_unsupported")
    assert error["message"].startswith("`messages.0.content.1` is a PDF, and no backend of alias 'reads-none' takes it")
    assert "vllm takes no PDF" in error["message"]


async def test_a_large_pdf_is_not_counted_as_text(stage: Stage) -> None:
    stage.backends["other"].play(answers("It is long."))
    large = {"type": "document", "source": {**SOURCE, "data": "A" * 2_000_000}}
    reply = await stage.ask("reads", [{"role": "user", "content": [large]}])
    assert (reply.status, reply.headers["x-gateway-backend"]) == (200, "reader")


async def test_that_a_chats_file_is_refused_is_remembered(stage: Stage) -> None:
    said = [{"role": "user", "content": [FILE]}]
    stage.backends["other"].play(refuses, answers("It is empty."))
    reply = await stage.chat("learns", said)
    assert (reply.status, reply.headers["x-gateway-backend"]) == (200, "reader")
    assert len(stage.asked("other")) == 2
    stage.backends["other"].play(answers("It is empty."))
    assert (await stage.chat("learns", said)).headers["x-gateway-backend"] == "reader"
    assert (await stage.ask("learns", PDF)).headers["x-gateway-backend"] == "reader"
    assert len(stage.asked("other")) == 2
    assert "pdf" in stage.gateway.gateway.fleet["other"].facts.lacks
    assert json.dumps(stage.asked("other")[0]["messages"]) == json.dumps(said)


async def test_a_client_cannot_send_what_the_translation_notes(stage: Stage) -> None:
    stage.backends["vllm"].play(answers("hello"))
    reply = await stage.chat("reads-none", BEGUN, x_gateway_file_at=["x"] * 3)
    assert reply.status == 200
    assert "x_gateway_file_at" not in stage.asked("vllm")[0]
