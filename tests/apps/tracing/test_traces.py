"""Traces of a running gateway, as a real OTLP receiver gets them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from simulator import SimVllm
from tests.apps.tracing.otlp import ReceivedSpan, Receiver
from tests.raw_client import chat, raw_client
from tests.support import RunningGateway, from_clients, running_gateway

CHAT = "/v1/chat/completions"


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


CALLER = "00f067aa0ba902b7"


SECRET = "what-was-asked-in-confidence"


SERVER, CLIENT = 2, 3  # SpanKind in OTLP


@asynccontextmanager
async def traced(*sims: SimVllm, to: str, more: str = "", clients: str = "") -> AsyncIterator[RunningGateway]:
    """The alias `chain` over these, with traces to this URL."""
    async with AsyncExitStack() as stack:
        lines = ["backends:"]
        for sim in sims:
            lines.append(f"  {sim.name}: {{url: '{await stack.enter_async_context(sim.serve())}'}}")
        lines.append(f"aliases: {{chain: {{use: [{', '.join(sim.name for sim in sims)}], also: [nickname]}}}}")
        lines += [f"traces: {{endpoint: '{to}'{more}}}", clients]
        gateway = await stack.enter_async_context(running_gateway("\n".join(lines)))
        await gateway.until_ready(*(sim.name for sim in sims))
        yield gateway


async def sent(gateway: RunningGateway, receiver: Receiver) -> tuple[ReceivedSpan, list[ReceivedSpan]]:
    """(the only request's span, those of its attempts in order), once all of it has ended and arrived."""
    await gateway.until(gateway.idle)
    assert gateway.gateway.apps.tracing.tracing is not None
    await asyncio.to_thread(gateway.gateway.apps.tracing.tracing.flush)
    (request,) = (span for span in receiver.spans if span.kind == SERVER)
    attempts = [span for span in receiver.spans if span.kind == CLIENT]
    assert len(receiver.spans) == 1 + len(attempts)
    return request, sorted(attempts, key=lambda span: span.began)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_a_span_with_a_child_for_its_attempt(receiver: Receiver, stream: bool) -> None:
    sim = SimVllm("a", served=["org/model"])
    async with traced(sim, to=receiver.url) as gateway:
        asked = chat("nickname", "20 words", stream=stream, max_tokens=500)
        answer = await gateway.client.post(CHAT, json=asked, headers={"x-request-id": "my-request"})
        assert answer.status_code == 200
        request, (attempt,) = await sent(gateway, receiver)
    assert (request.name, request.parent, request.failed) == ("chat chain", "", False)
    said = request.attributes
    assert (said["gen_ai.operation.name"], said["gen_ai.request.model"]) == ("chat", "nickname")
    assert (said["gateway.alias"], said["gateway.backend"], said["gateway.client"]) == ("chain", "a", "open")
    assert (said["gateway.request_id"], said["gateway.outcome"], said["gateway.attempts"]) == ("my-request", "200", 1)
    assert (said["http.response.status_code"], said["url.path"]) == (200, CHAT)
    assert said["gen_ai.request.stream"] is stream
    assert "error.type" not in said
    assert (attempt.name, attempt.parent, attempt.trace) == ("chat org/model", request.id, request.trace)
    told = attempt.attributes
    assert (told["gen_ai.provider.name"], told["gen_ai.request.model"]) == ("vllm", "org/model")
    assert told["gen_ai.response.model"] == "org/model"
    assert told["gen_ai.response.finish_reasons"] == ["stop"]
    assert (told["server.address"], told["server.port"]) == ("127.0.0.1", int(sim.url.rpartition(":")[2]))
    assert (told["gateway.attempt"], told["gateway.outcome"], told["gen_ai.request.max_tokens"]) == (1, "ok", 500)
    assert told["gen_ai.usage.input_tokens"] > 0
    assert told["gen_ai.usage.output_tokens"] > 0
    assert ("gen_ai.response.time_to_first_chunk" in told) is stream
    assert request.began <= attempt.began < attempt.ended <= request.ended
    assert request.resource["service.name"] == "spark-gateway"


async def test_tokens_stand_on_the_attempt_alone_so_that_no_sum_counts_them_twice(receiver: Receiver) -> None:
    async with traced(SimVllm("a"), to=receiver.url) as gateway:
        usage = (await gateway.client.post(CHAT, json=chat("chain", "20 words"))).json()["usage"]
        request, (attempt,) = await sent(gateway, receiver)
    assert attempt.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert attempt.attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert not [name for name in request.attributes if name.startswith("gen_ai.usage")]


async def test_an_attempt_that_failed_is_a_child_of_its_own(receiver: Receiver) -> None:
    one, two = SimVllm("a"), SimVllm("b")
    async with traced(one, two, to=receiver.url) as gateway:
        one.fault("status", status=500, count=1)
        assert (await gateway.client.post(CHAT, json=chat("chain"))).status_code == 200
        request, (left, answered) = await sent(gateway, receiver)
    assert (left.failed, left.attributes["error.type"]) == (True, "failed")
    assert (left.attributes["gateway.backend"], answered.attributes["gateway.backend"]) == ("a", "b")
    assert (answered.failed, answered.attributes["gateway.attempt"]) == (False, 2)
    assert left.parent == answered.parent == request.id
    assert left.id != answered.id
    assert request.failed is False
    assert (request.attributes["gateway.backend"], request.attributes["gateway.attempts"]) == ("b", 2)
    assert "gateway.fallback" in request.attributes


async def test_a_request_that_nobody_could_answer_has_failed(receiver: Receiver) -> None:
    sim = SimVllm("a")
    async with traced(sim, to=receiver.url) as gateway:
        sim.fault("status", status=500)
        assert (await gateway.client.post(CHAT, json=chat("chain"))).status_code == 502
        request, (attempt,) = await sent(gateway, receiver)
    assert (request.failed, request.attributes["error.type"]) == (True, "upstream_error")
    assert request.attributes["http.response.status_code"] == 502
    assert attempt.failed


async def test_what_the_client_got_wrong_is_no_failure_of_ours(receiver: Receiver) -> None:
    async with traced(SimVllm("a"), to=receiver.url) as gateway:
        assert (await gateway.client.post(CHAT, json=chat("unheard-of"))).status_code == 404
        request, attempts = await sent(gateway, receiver)
    assert attempts == []
    assert (request.name, request.failed, request.attributes["error.type"]) == ("chat", False, "model_not_found")


async def test_a_body_that_is_none_is_traced_too(receiver: Receiver) -> None:
    async with traced(SimVllm("a"), to=receiver.url, more=", prompts: true") as gateway:
        assert (await gateway.client.post(CHAT, content=b"{")).status_code == 400
        request, _ = await sent(gateway, receiver)
    assert request.attributes["gateway.outcome"] == "invalid_request_body"


async def test_a_client_that_leaves_is_no_failure(receiver: Receiver) -> None:
    sim = SimVllm("a")
    async with traced(sim, to=receiver.url) as gateway:
        sim.fault("hang_mid", after=3, count=1)
        async with raw_client(gateway.url) as client:
            await client.post(CHAT, chat("chain", stream=True))
            await client.until(b'"content"')
        request, (attempt,) = await sent(gateway, receiver)
    assert (request.attributes["gateway.outcome"], request.failed) == ("client_gone", False)
    assert (attempt.attributes["gateway.outcome"], attempt.failed) == ("client_gone", False)
    assert request.attributes["gateway.backend"] == "a"


def parent_of(sim: SimVllm) -> list[str]:
    return from_clients(sim.requests)[-1].headers["traceparent"].split("-")


async def test_the_callers_trace_goes_on_through_the_gateway_to_the_backend(receiver: Receiver) -> None:
    sim = SimVllm("a")
    async with traced(sim, to=receiver.url, more=", sample: 0") as gateway:
        given = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=1"}
        await gateway.client.post(CHAT, json=chat("chain"), headers=given)
        request, (attempt,) = await sent(gateway, receiver)
        assert parent_of(sim) == ["00", TRACE, attempt.id, "01"]
        assert sim.requests[-1].headers["tracestate"] == "vendor=1"
    assert (request.trace, request.parent) == (TRACE, CALLER)


async def test_each_attempt_tells_its_backend_its_own_span(receiver: Receiver) -> None:
    one, two = SimVllm("a"), SimVllm("b")
    async with traced(one, two, to=receiver.url) as gateway:
        one.fault("status", status=500, count=1)
        await gateway.client.post(CHAT, json=chat("chain"))
        _, spans = await sent(gateway, receiver)
        assert [parent_of(one)[2], parent_of(two)[2]] == [span.id for span in spans]


async def test_a_caller_that_does_not_trace_is_not_traced(receiver: Receiver) -> None:
    sim = SimVllm("a")
    async with traced(sim, to=receiver.url) as gateway:
        given = f"00-{TRACE}-{CALLER}-00"
        await gateway.client.post(CHAT, json=chat("chain"), headers={"traceparent": given})
        await gateway.client.post(CHAT, json=chat("chain"))
        request, _ = await sent(gateway, receiver)  # of the second alone
        assert request.trace != TRACE
        assert sim.requests[-2].headers["traceparent"] == given


async def test_what_is_not_sampled_tells_the_backend_so(receiver: Receiver) -> None:
    sim = SimVllm("a")
    async with traced(sim, to=receiver.url, more=", sample: 0") as gateway:
        await gateway.client.post(CHAT, json=chat("chain"))
        await gateway.until(gateway.idle)
        assert parent_of(sim)[3] == "00"
    assert receiver.spans == []


@pytest.mark.parametrize("given", ["nonsense", f"00-{'0' * 32}-{CALLER}-01", f"ff-{TRACE}-{CALLER}-01", "00-é-1-01"])
async def test_a_traceparent_that_is_none_begins_a_new_trace(receiver: Receiver, given: str) -> None:
    sim = SimVllm("a")
    async with traced(sim, to=receiver.url) as gateway:
        headers = {b"traceparent": given.encode("latin-1"), b"tracestate": b"vendor=1"}
        await gateway.client.post(CHAT, json=chat("chain"), headers=headers)
        request, _ = await sent(gateway, receiver)
        assert "tracestate" not in sim.requests[-1].headers
    assert request.parent == ""
    assert request.trace not in (TRACE, "0" * 32)


async def test_without_traces_the_callers_headers_go_up_as_they_are() -> None:
    sim = SimVllm("a")
    async with sim.serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        given = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=1"}
        await gateway.client.post(CHAT, json=chat("a"), headers=given)
        assert gateway.gateway.apps.tracing.tracing is None
        assert {name: sim.requests[-1].headers[name] for name in given} == given


async def test_prompts_and_answers_are_not_exported(receiver: Receiver) -> None:
    sim = SimVllm("a")
    async with traced(sim, to=receiver.url) as gateway:
        for status in (400, 404, 429, 500):
            sim.fault("status", status=status, body={"error": {"message": f"bad prompt: {SECRET}"}}, count=1)
            await gateway.client.post(CHAT, json=chat("chain", f"Say {SECRET}"))
            gateway.gateway.fleet["a"].cooldown_until = 0.0
        await gateway.client.post(CHAT, json={**chat("chain", SECRET), "vllm_xargs": {"script": SECRET}})
        await gateway.until(gateway.idle)
        assert gateway.gateway.apps.tracing.tracing is not None
        await asyncio.to_thread(gateway.gateway.apps.tracing.tracing.flush)
    assert sum(span.kind == SERVER for span in receiver.spans) == 5
    assert SECRET not in str(receiver.spans)


CLIENTS = "clients: {open-book: {key: key-of-open-book}, discreet: {key: key-of-discreet, local_only: true}}"


@pytest.mark.parametrize(
    ("client", "header", "told"),
    [("open-book", "0", True), ("open-book", "1", False), ("open-book", "true", False), ("discreet", "0", False)],
)
async def test_prompts_are_exported_where_asked_but_not_those_that_must_stay(
    receiver: Receiver, client: str, header: str, told: bool
) -> None:
    async with traced(SimVllm("a"), to=receiver.url, more=", prompts: true", clients=CLIENTS) as gateway:
        headers = {"authorization": f"Bearer key-of-{client}", "x-gateway-local-only": header}
        assert (await gateway.client.post(CHAT, json=chat("chain", SECRET), headers=headers)).status_code == 200
        request, _ = await sent(gateway, receiver)
    assert (SECRET in str(receiver.spans)) is told
    if told:
        expected = f'[{{"role":"user","parts":[{{"type":"text","content":"{SECRET}"}}]}}]'
        assert request.attributes["gen_ai.input.messages"] == expected


async def test_what_goes_on_from_a_prompt_that_must_stay_is_traced_without_it(receiver: Receiver) -> None:
    sim = SimVllm("a")
    async with traced(sim, to=receiver.url, more=", prompts: true", clients="server: {keep_responses: 1h}") as gateway:
        body = {"model": "chain", "input": SECRET}
        first = await gateway.client.post("/v1/responses", json=body, headers={"x-gateway-local-only": "1"})
        then = {"model": "chain", "input": "on", "previous_response_id": first.json()["id"]}
        parent = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
        assert (await gateway.client.post("/v1/responses", json=then, headers=parent)).status_code == 200
        await gateway.until(gateway.idle)
        assert gateway.gateway.apps.tracing.tracing is not None
        await asyncio.to_thread(gateway.gateway.apps.tracing.tracing.flush)
    assert sum(span.kind == SERVER for span in receiver.spans) == 2
    assert SECRET not in str(receiver.spans)
    assert CALLER not in sim.requests[-1].headers["traceparent"], "the backend's span is a child of the attempt's"
