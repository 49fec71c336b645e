"""`gateway init` writes a backend for each model that a server serves now, as the server itself names and sizes it; one
that only lies on its disk gets none."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.apps.importing.discovery import MODELS, FoundServer, Model, ServerReply, further_paths, identify
from gateway.apps.importing.draft import Draft
from gateway.apps.importing.output import render, verify_round_trip
from gateway.apps.importing.server_draft import draft_of

URL = "http://127.0.0.1:9"
CACHE = [{"id": f"org/model-{number}", "object": "model", "owned_by": "org"} for number in range(3)]


def served(cards: list[dict[str, Any]], headers: dict[str, str] | None = None, **others: Any) -> FoundServer:
    """What is found at a server with this model list; `others`: path without slashes -> its answer."""
    paths = {f"/{path.replace('__', '/')}": ServerReply(200, body) for path, body in others.items()}
    return identify(URL, {MODELS: ServerReply(200, {"data": cards}, headers or {}), **paths})


def keys_of(server: FoundServer) -> list[dict[str, Any]]:
    return [entry.keys for entry in drafted(server).backends.values()]


def drafted(server: FoundServer) -> Draft:
    return draft_of([server])


def test_llama_server_with_its_window_and_slots() -> None:
    card = {"id": "qwen3.gguf", "owned_by": "llamacpp", "meta": {"n_ctx": 1024, "n_ctx_train": 40960}}
    server = served([card], props={"total_slots": 4, "default_generation_settings": {"n_ctx": 1024}})
    assert further_paths({MODELS: ServerReply(200, {"data": [card]})}) == ["/props"]
    assert keys_of(server) == [{"engine": "llamacpp", "url": URL, "model": "qwen3.gguf", "context": 1024, "slots": 4}]


def test_a_router_of_llama_server_with_what_is_loaded() -> None:
    cards = [
        {"id": name, "owned_by": "llamacpp", "status": {"value": value}}
        for name, value in (("a", "unloaded"), ("b", "loaded"), ("c", "unloaded"))
    ]
    server = served(cards)
    assert [keys["model"] for keys in keys_of(server)] == ["b"]
    assert f"  # {URL} has 2 more on its disk: what is not loaded gets no backend." in drafted(server).after["backends"]


def test_mlx_with_the_model_it_was_started_with() -> None:
    headers = {"server": "BaseHTTP/0.6 Python/3.11.7"}
    server = served(CACHE, headers, health={"status": "ok"})
    assert keys_of(server) == [{"engine": "mlx", "url": URL, "model": "default_model"}]
    assert list(drafted(server).backends) == ["mlx"]
    one = served(CACHE[:1], headers, health={"status": "ok"})
    assert keys_of(one) == keys_of(server)
    assert list(drafted(one).aliases) == ["model-0"]


def test_mlx_without_a_cache_answers_its_model_list_with_nothing() -> None:
    headers = {"server": "BaseHTTP/0.6 Python/3.11.7"}
    server = identify(URL, {MODELS: ServerReply(200, None, headers), "/health": ServerReply(200, {"status": "ok"})})
    assert (server.kind, [model.name for model in server.models]) == ("mlx", ["default_model"])


def test_transformers_serve_without_a_guess_at_its_model() -> None:
    server = served(CACHE, {}, **{"openapi.json": {"paths": {"/load_model": {}, "/v1/chat/completions": {}}}})
    assert keys_of(server) == [{"engine": "openai", "server": "transformers", "url": URL}]
    assert any("name the one you mean" in line for line in drafted(server).backends["transformers"].comment)


def test_lm_studio_with_what_is_loaded_and_its_window() -> None:
    cards = [{"id": name, "owned_by": "organization_owner"} for name in ("a", "b")]
    details = [
        {"id": "a", "state": "not-loaded", "max_context_length": 131072},
        {"id": "b", "state": "loaded", "max_context_length": 131072, "loaded_context_length": 8192},
    ]
    server = served(cards, api__v0__models={"data": details})
    assert keys_of(server) == [{"engine": "openai", "server": "lmstudio", "url": URL, "model": "b", "context": 8192}]
    assert keys_of(served(cards)) == []  # it does not say what is loaded


def test_sglang_tensorrt_llm_and_text_generation_inference() -> None:
    sglang = served([{"id": "m", "owned_by": "sglang", "max_model_len": 32768}])
    assert keys_of(sglang) == [{"engine": "openai", "server": "sglang", "url": URL, "model": "m", "context": 32768}]
    tensorrt = served([{"id": "m", "owned_by": "tensorrt_llm"}])
    assert keys_of(tensorrt) == [{"engine": "openai", "server": "tensorrt-llm", "url": URL, "model": "m"}]
    info = {"model_id": "m", "max_total_tokens": 4096, "max_concurrent_requests": 128}
    tgi = served([{"id": "m", "owned_by": "m"}], info=info)
    assert keys_of(tgi) == [
        {"engine": "openai", "server": "tgi", "url": URL, "model": "m", "context": 4096, "slots": 128}
    ]


def test_a_server_that_is_not_recognised_is_written_as_before() -> None:
    server = served([{"id": "m", "owned_by": "local", "context_length": 4096}])
    assert keys_of(server) == [{"engine": "openai", "url": URL, "model": "m", "context": 4096}]


def test_numbers_that_cannot_be_windows_or_slots_are_left_out() -> None:
    card = {"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": "1024"}}
    server = served([card], props={"total_slots": -1, "default_generation_settings": []})
    assert keys_of(server) == [{"engine": "llamacpp", "url": URL, "model": "m"}]


ODD = ["a\nb", "a\x00b", "\ud800x", "\u2028", "\x1b[31m", "${FIREWORKS_API_KEY}"]


@pytest.mark.parametrize("name", ODD)
def test_a_model_whose_name_cannot_be_written_keeps_no_other_from_being_written(name: str) -> None:
    server = served([{"id": name, "owned_by": "org"}, {"id": "good", "owned_by": "org"}])
    others = [FoundServer("http://127.0.0.1:10", "vllm", (Model("better"),))]
    draft = draft_of([server, *others])
    text = render(draft)
    loaded = verify_round_trip(text, draft, {"FIREWORKS_API_KEY": "secret"})
    assert [backend.model for backend in loaded.snapshot.backends.values()] == ["good", "better"]
    assert "1 of its 2 models get no backend" in text
    assert "secret" not in repr(loaded.snapshot)


def test_a_server_gets_a_bounded_number_of_backends() -> None:
    draft = drafted(served([{"id": f"m{number}", "owned_by": "org"} for number in range(2000)]))
    assert len(draft.backends) == 500
    assert "1500 of its 2000 models get no backend: the first 500 do" in render(draft)
