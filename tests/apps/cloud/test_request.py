"""Which fields of a request reach a cloud, and in which words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from gateway.apps.cloud.request import chat_arguments
from gateway.engines.base import InexpressibleRequest
from gateway.inspection.error_replies import judge
from tests.apps.cloud.test_engine import ASK, TOOL, ask


def arguments(*also: str, **fields: Any) -> dict[str, Any]:
    """`also`: further parameters that the cloud takes."""
    raw = {name: Raw(msgspec.json.encode(value)) for name, value in {**ASK, **fields}.items()}
    return chat_arguments(raw, frozenset({"temperature", "tools", *also}), stream=False)


def test_only_known_fields_are_passed_on() -> None:
    given = {"api_base": "http://evil", "api_key": "x", "mock_response": "hi", "fallbacks": ["m"], "top_k": 3}
    assert arguments(**given).keys() == {"messages"}


def test_hints_that_a_cloud_lacks_are_left_out_and_demands_are_not() -> None:
    chosen = arguments(temperature=0.5, seed=1, frequency_penalty=0.1, n=2, tools=[TOOL], stop=None)
    assert chosen.keys() == {"messages", "temperature", "n", "tools"}


@pytest.mark.parametrize(
    ("kind", "takes", "becomes"),
    [
        ("adaptive", [], {}),
        ("disabled", [], {}),
        ("disabled", ["reasoning_effort"], {"reasoning_effort": "none"}),
        ("enabled", ["reasoning_effort"], {"reasoning_effort": "medium"}),
        ("enabled", [], {"thinking": {"type": "enabled"}}),  # the cloud refuses it
        *((kind, ["thinking"], {"thinking": {"type": kind}}) for kind in ("adaptive", "disabled", "enabled")),
    ],
)
def test_thinking_is_said_as_the_cloud_knows_it(kind: str, takes: list[str], becomes: dict[str, Any]) -> None:
    assert arguments(*takes, thinking={"type": kind}) == {"messages": ASK["messages"], **becomes}


def test_an_effort_that_was_asked_for_wins_over_that_of_thinking() -> None:
    assert arguments("reasoning_effort", thinking={"type": "enabled"}, reasoning_effort="high")["reasoning_effort"] == (
        "high"
    )


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://192.168.1.1/admin"}},
        {"type": "image_url", "image_url": "https://example.invalid/cat.png"},
        {"type": "file", "file": {"file_id": "http://192.168.1.1/admin"}},
        {"type": "file", "file": {"file_id": "http://192.168.1.1/admin", "file_data": "data:application/pdf;base64,A"}},
        {"type": "file", "file": "data:application/pdf;base64,AAAA"},
        "text",
    ],
)
def test_nothing_is_fetched_for_a_client(part: object) -> None:
    with pytest.raises(InexpressibleRequest, match="data URL"):
        arguments(messages=[{"role": "user", "content": [part]}])


def test_pictures_and_pdfs_as_data_go_through() -> None:
    image, file = {"url": "data:image/png;base64,AAAA"}, {"file_data": "data:application/pdf;base64,AAAA"}
    parts = [{"type": "image_url", "image_url": image}, {"type": "file", "file": file}]
    assert arguments(messages=[{"role": "user", "content": parts}])["messages"][0]["content"] == parts


@pytest.mark.parametrize("model", ["gpt-4o", "openai/gpt-4o", "nobodys-model", "hosted_vllm/x"])
async def test_a_model_that_would_go_to_openai_by_default_is_misconfigured(model: str) -> None:
    response = await ask(None, model=model)
    body = await response.read_all(10_000)
    verdict = judge(response.status, response.headers, body, "chat")
    assert verdict.kind == "misconfigured"
    assert "engine: openai" in verdict.message or "provider/model" in verdict.message
