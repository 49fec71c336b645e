"""What a server is by its answers, and the file that is written for those that were found."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gateway.apps.importing.discovery import MODELS, OLLAMA_VERSION, SHOW, FoundServer, Model, ServerReply, identify
from gateway.apps.importing.output import render, verify_round_trip
from gateway.apps.importing.server_draft import apply_findings, draft_of, short
from gateway.config.load import load_text
from gateway.config.snapshot import Snapshot
from gateway.engines.ollama.installed_models import INSTALLED, LOADED

QWEN = "RedHatAI/Qwen3.6-35B-A3B-NVFP4"
URL = "http://spark1:8001"


def card(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "object": "model", **more}


def models(*cards: dict[str, Any]) -> dict[str, ServerReply]:
    return {MODELS: ServerReply(200, {"data": list(cards)})}


def vllm(*names: str, **more: Any) -> dict[str, ServerReply]:
    return models(*(card(name, owned_by="vllm", max_model_len=131072, parent=None, **more) for name in names))


# -- what answers there -----------------------------------------------------------------------------------------------


def test_a_vllm_is_one_model_with_its_names() -> None:
    server = identify(URL, vllm(QWEN, "qwen"))
    assert (server.kind, server.models) == ("vllm", (Model(QWEN, 131072, also=("qwen",)),))


def test_a_vllm_behind_its_rust_front_end_is_one_model_with_its_names_too() -> None:
    cards = [card(name, owned_by="vllm-frontend-rs", max_model_len=2048, parent=None) for name in ("tiny", "alias")]
    server = identify(URL, models(*cards))
    assert (server.kind, server.models) == ("vllm", (Model("tiny", 2048, also=("alias",)),))
    assert len(draft_of([server]).backends) == 1


def test_an_adapter_is_a_model_of_its_own() -> None:
    adapter = card("sql-lora", owned_by="vllm", parent=QWEN)
    replies = models(card(QWEN, owned_by="vllm", max_model_len=8), adapter)
    assert [model.name for model in identify(URL, replies).models] == [QWEN, "sql-lora"]


def test_another_openai_server() -> None:
    server = identify(URL, models(card("m", owned_by="local", context_length=4096), card("bge-m3")))
    assert server.kind == "openai"
    assert server.models == (Model("m", 4096), Model("bge-m3", chat=False))


def test_an_ollama_tells_its_windows_and_what_it_can_do() -> None:
    replies = {
        **models(card("qwen3:8b", owned_by="library")),
        OLLAMA_VERSION: ServerReply(200, {"version": "0.12.6"}),
        INSTALLED: ServerReply(
            200, {"models": [{"name": "qwen3:8b"}, {"name": "tiny"}, {"name": "old"}, {"name": "nomic-embed-text"}]}
        ),
        LOADED: ServerReply(200, {"models": [{"name": "qwen3:8b", "context_length": 16384}]}),
        f"{SHOW}:qwen3:8b": ServerReply(
            200, {"capabilities": ["completion", "tools"], "model_info": {"q.context_length": 40960}}
        ),
        f"{SHOW}:tiny": ServerReply(
            200, {"capabilities": ["completion", "vision"], "model_info": {"t.context_length": 8192}}
        ),
    }
    server = identify("http://spark1:11434", replies)
    assert server.kind == "ollama"
    assert server.models == (
        Model("qwen3:8b", 16384, tools=True, vision=False),
        Model("tiny", 8192, ready=False, tools=False, vision=True),
        Model("old", 32768, ready=False),
        Model("nomic-embed-text", 32768, chat=False, ready=False),
    )


def of_weights(*names: str, loaded: str) -> dict[str, ServerReply]:
    """An Ollama whose models are all made of one file; names with the same first letter are one model."""
    entries = [{"name": name, "digest": name[0] * 64} for name in names]
    modelfile = f"# of `ollama show`\nFROM /usr/share/ollama/.ollama/models/blobs/sha256-{'a1' * 32}\nTEMPLATE x\n"
    return {
        OLLAMA_VERSION: ServerReply(200, {"version": "0.33.0"}),
        INSTALLED: ServerReply(200, {"models": entries}),
        LOADED: ServerReply(200, {"models": [{"name": loaded, "context_length": 4096}]}),
        **{f"{SHOW}:{name}": ServerReply(200, {"modelfile": modelfile}) for name in names},
    }


def test_names_of_one_model_of_an_ollama_are_one_backend() -> None:
    server = identify("http://spark1:11434", of_weights("qwen3:8b", "qwen3:latest", loaded="qwen3:latest"))
    assert server.models == (Model("qwen3:latest", 4096, also=("qwen3:8b",)),)
    _, snapshot = written(server)
    assert list(snapshot.backends) == ["qwen3"]
    assert snapshot.aliases["qwen3"].also == ("qwen3:8b",)


def test_models_of_one_file_of_weights_share_the_slots_of_their_runner() -> None:
    server = identify("http://spark1:11434", of_weights("qwen3:8b", "coder", "qwen3", "writer", loaded="coder"))
    assert server.models == (Model("coder", 4096, weights=("qwen3:8b", "writer")),)
    text, snapshot = written(server)
    assert list(snapshot.backends) == ["coder"]
    assert "'writer' has the weights of 'coder' and shares its runner and its slots" in text


def test_models_of_other_weights_are_backends_of_their_own() -> None:
    replies = of_weights("a", "b", loaded="a")
    del replies[f"{SHOW}:b"]  # its Modelfile was not read
    assert [model.name for model in identify("http://spark1:11434", replies).models] == ["a", "b"]


@pytest.mark.parametrize(
    ("replies", "kind"),
    [
        ({MODELS: ServerReply(401, {"error": "Unauthorized"})}, "locked"),
        ({MODELS: ServerReply(404)}, "unknown"),
        ({MODELS: ServerReply(200, "<html>")}, "unknown"),
        ({MODELS: ServerReply(200, {"data": "x"})}, "unknown"),
        ({MODELS: ServerReply(200, {"data": [1, None, {"id": 3.5}, {}]})}, "openai"),
        (models(card("a", x_gateway={})), "gateway"),
        ({}, "unknown"),
    ],
)
def test_what_else_may_answer(replies: dict[str, ServerReply], kind: str) -> None:
    assert identify(URL, replies).kind == kind


# -- the file ---------------------------------------------------------------------------------------------------------


def written(*servers: FoundServer, **exporters: str) -> tuple[str, Snapshot]:
    draft = draft_of(servers, exporters)
    text = render(draft)
    return text, verify_round_trip(text, draft, {}).snapshot


FLEET = (
    FoundServer("http://spark1:8001", "vllm", (Model(QWEN, 131072, also=("qwen",)),)),
    FoundServer("http://spark2:8001", "vllm", (Model("Qwen/Qwen3.6-35B-A3B-FP8", 65536),)),
    FoundServer("http://spark2:8002", "vllm", (Model("BAAI/bge-m3", 8192, chat=False),)),
    FoundServer("http://mac:1234", "openai", (Model("gemma"),)),
    FoundServer("http://spark1:11434", "ollama", (Model("qwen3:8b", 32768, tools=False), Model("b", 8192))),
    FoundServer("http://spark1:4000", "gateway"),
    FoundServer("http://spark2:8009", "locked"),
    FoundServer("http://spark2:8080", "unknown"),
)


def test_backends_are_what_was_found() -> None:
    _, snapshot = written(*FLEET)
    assert list(snapshot.backends) == ["qwen3.6-35b-a3b", "qwen3.6-35b-a3b-spark2", "bge-m3", "gemma", "qwen3:8b", "b"]
    first, small = snapshot.backends["qwen3.6-35b-a3b"], snapshot.backends["qwen3:8b"]
    assert (first.engine, first.model, first.context, first.nodes) == ("vllm", QWEN, 131072, ("spark1",))
    assert (small.engine, small.tool_parser, small.context) == ("ollama", "none", 32768)


def test_the_same_model_stands_side_by_side_and_the_next_best_stand_in() -> None:
    _, snapshot = written(*FLEET)
    pair = ("qwen3.6-35b-a3b", "qwen3.6-35b-a3b-spark2")
    explicit = {name: alias.steps for name, alias in snapshot.aliases.items() if not alias.implicit}
    assert explicit == {
        "default": (pair, ("gemma",), ("qwen3:8b",)),
        "qwen3.6-35b-a3b": (pair, ("gemma",), ("qwen3:8b",)),
        "gemma": (("gemma",), ("qwen3:8b",)),
        "qwen3:8b": (("qwen3:8b",),),
        "b": (("b",),),
    }, "a load of another model of the same Ollama would push out the first"
    assert snapshot.aliases["qwen3.6-35b-a3b"].also == ("qwen",)


def test_one_model_alone_needs_no_default() -> None:
    _, snapshot = written(FoundServer("http://localhost:8001", "vllm", (Model("m", 8),)))
    assert list(snapshot.aliases) == ["m"]
    assert not snapshot.nodes


def test_a_server_outside_the_lan_is_a_cloud_and_in_no_name_of_its_own() -> None:
    text, snapshot = written(FoundServer("https://llm.example.com:443", "openai", (Model("m"),)))
    assert snapshot.backends["m"].cloud
    assert "cloud: true" in text


def test_exporters_make_nodes() -> None:
    text, snapshot = written(*FLEET, spark1="http://spark1:9835/metrics")
    assert snapshot.nodes["spark1"].exporter == "http://spark1:9835/metrics"
    assert snapshot.nodes["spark2"].exporter is None
    assert "node: spark2" in text


def test_the_commented_blocks_load_when_their_marks_are_removed() -> None:
    text, _ = written(*FLEET)
    assert "# http://spark2:8009 wants a key." in text
    used = re.sub(r"^#(?! )|^#(?=  )", "", text, flags=re.M)
    environ = {name: f"http://h/{name}" for name in re.findall(r"\$\{(\w+)\}", used)}
    snapshot = load_text(used, "routes.yaml", environ).snapshot
    assert {"fireworks", "locked-spark2-8009"} <= set(snapshot.backends)
    assert set(snapshot.clients) == {"hermes", "webui", "ops"}
    assert snapshot.alerts.telegram_chat == "12345"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (QWEN, "qwen3.6-35b-a3b"),
        ("qwen3:8b", "qwen3:8b"),
        ("llama3:latest", "llama3"),
        ("x/Model-Q4_K_M.gguf", "model"),
        ("Qwen3-Next-80B-A3B-Instruct-FP8", "qwen3-next-80b-a3b-instruct"),
        ("m-AWQ-4bit", "m"),
    ],
)
def test_short_names(model: str, name: str) -> None:
    assert short(model) == name


# -- what a probe saw -------------------------------------------------------------------------------------------------


def after_probe(model: str, kind: Any = "vllm", **results: str | tuple[str, str]) -> tuple[str, dict[str, Any]]:
    """(the text, the backend's keys) after these results; `plain` is yes unless it is said."""
    draft = draft_of([FoundServer(URL, kind, (Model(model),))])
    (name,) = draft.backends
    pairs = {
        check: seen if isinstance(seen, tuple) else (seen, "x") for check, seen in {"plain": "yes", **results}.items()
    }
    checks = {check: {"result": result, "seen": seen} for check, (result, seen) in pairs.items()}
    apply_findings(draft, [{"backend": name, "checks": checks}])
    text = render(draft)
    verify_round_trip(text, draft, {})
    keys = draft.backends[name].keys
    return text, {key: value for key, value in keys.items() if key not in ("engine", "url", "model", "node")}


def test_a_call_that_came_as_one_names_the_familys_parser() -> None:
    _, keys = after_probe(QWEN, tool_auto="yes", reasoning="yes", thinking_off="yes")
    assert keys == {"tool_parser": "qwen3_xml", "reasoning_parser": "qwen3", "thinking": "optional"}


def test_of_an_unknown_family_only_what_was_seen_is_declared() -> None:
    assert after_probe("x/unheard-of-7b", tool_auto="yes", reasoning="no")[1] == {"auto_tools": True}


def test_a_missing_parser_is_declared_with_the_flags_that_help() -> None:
    said = '400: "auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    text, keys = after_probe(QWEN, tool_auto=("no", said))
    assert keys == {"tool_parser": "none"}
    assert "# start vLLM with --enable-auto-tool-choice --tool-call-parser qwen3_xml" in text


def test_what_was_odd_is_a_comment_and_no_declaration() -> None:
    text, keys = after_probe(
        QWEN, tool_auto=("mended", "the call came as text"), reasoning=("mended", "in the content")
    )
    assert keys == {}
    assert "# Tools: the call came as text" in text
    assert "# Thoughts: in the content" in text


def test_a_model_that_thinks_although_it_is_asked_not_to_always_thinks() -> None:
    assert after_probe(QWEN, reasoning="yes", thinking_off="no")[1]["thinking"] == "always"


def test_a_backend_that_did_not_answer_is_told_so() -> None:
    text, keys = after_probe(QWEN, plain=("no", "no answer: none within 1 s"), tool_auto="yes")
    assert keys == {}
    assert "# Asked for a short answer: no answer" in text
