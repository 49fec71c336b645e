"""LiteLLM's deployments become backends."""

from __future__ import annotations

import pytest

from gateway.apps.importing.litellm import convert
from gateway.apps.importing.source import read_source
from tests.apps.importing.support import Imported, imported, imported_file
from tests.apps.importing.test_litellm import deployment, one


@pytest.fixture(scope="module")
def fleet() -> Imported:
    return imported_file("litellm", "litellm-config.yaml")


def test_the_same_server_and_model_under_several_names_is_one_backend(fleet: Imported) -> None:
    backend = fleet.snapshot.backends["Qwen3-Next-80B-A3B-Instruct-FP8"]
    assert (backend.engine, backend.url) == ("vllm", "http://192.168.1.12:8002/v1")
    assert (backend.model, backend.slots) == ("Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", 2)
    assert backend.api_key is None  # `none` only stands for no key
    for alias in ("writer", "reviewer", "claude"):
        assert fleet.steps(alias)[0] == [backend.name]
    assert len(fleet.snapshot.backends) == 7


def test_ollama_gets_its_window(fleet: Imported) -> None:
    backend = fleet.snapshot.backends["qwen3:8b"]
    assert (backend.engine, backend.model, backend.context) == ("ollama", "qwen3:8b", 32768)


def test_clouds_are_clouds_with_key_price_and_budget(fleet: Imported) -> None:
    fireworks, sonnet = fleet.snapshot.backends["cloud"], fleet.snapshot.backends["sonnet"]
    assert (fireworks.engine, fireworks.cloud) == ("openai", True)
    assert fireworks.url == "https://api.fireworks.ai/inference/v1"
    assert fireworks.model == "accounts/fireworks/models/deepseek-v4-flash"
    assert fireworks.price is not None
    assert (fireworks.price.input, fireworks.price.output) == (0.5, 1.5)
    assert (sonnet.engine, sonnet.cloud, sonnet.model) == ("litellm", True, "anthropic/claude-sonnet-5")
    assert sonnet.budget is not None
    assert (sonnet.budget.usd, sonnet.budget.per) == (5.0, "day")
    assert 'api_key: "${FIREWORKS_API_KEY}"' in fleet.text
    assert "cloud: true" in fleet.text


def test_an_audio_server_of_ones_own_is_one(fleet: Imported) -> None:
    assert fleet.snapshot.backends["ears"].serves == ("transcriptions",)
    assert fleet.steps("ears") == [["ears"]]


@pytest.mark.parametrize(("mode", "serves"), [("embedding", "embeddings"), ("rerank", "rerank")])
def test_a_model_that_does_not_chat_is_no_chat_backend(mode: str, serves: str) -> None:
    made = imported("litellm", f"model_list: [{deployment('e', mode=mode)}]")
    assert made.snapshot.backends["e"].serves == (serves,)


def test_what_an_engine_does_not_serve_is_left_out_with_its_line() -> None:
    text = "model_list:\n- {model_name: r, litellm_params: {model: ollama/r, num_ctx: 8}, model_info: {mode: rerank}}\n"
    draft = convert(read_source(text, "config.yaml"))
    (note,) = [note for note in draft.notes if note.kind == "left_out"]
    assert (note.problem.line, note.problem.message) == (2, "engine ollama does not serve rerank")


def test_a_server_of_several_kinds_serves_them_together() -> None:
    two = f"model_list: [{deployment('e', mode='embedding')}, {deployment('r', model='e', mode='rerank')}]"
    assert [set(b.serves) for b in imported("litellm", two).snapshot.backends.values()] == [{"embeddings", "rerank"}]
    chats = f"model_list: [{deployment('e', mode='embedding')}, {deployment('c', model='e')}]"
    assert [b.serves for b in imported("litellm", chats).snapshot.backends.values()] == [()]


@pytest.mark.parametrize(
    ("params", "engine", "url", "model", "cloud"),
    [
        ("model: openai/x, api_base: http://10.0.0.1:8000/v1", "openai", "http://10.0.0.1:8000/v1", "x", False),
        ("model: openai/a/b, api_base: 'http://h:8000/'", "openai", "http://h:8000", "a/b", False),
        ("model: hosted_vllm/x, api_base: h:8000", "vllm", "http://h:8000", "x", False),
        ("model: vllm/x, api_base: http://h:8000/v1/chat/completions", "vllm", "http://h:8000/v1", "x", False),
        ("model: ollama/llama3", "ollama", "http://localhost:11434", "llama3", False),
        ("model: openai/gpt-5", "openai", "https://api.openai.com/v1", "gpt-5", True),
        ("model: gpt-5", "openai", "https://api.openai.com/v1", "gpt-5", True),
        ("model: claude-sonnet-5", "litellm", None, "anthropic/claude-sonnet-5", True),
        ("model: groq/llama-3", "openai", "https://api.groq.com/openai/v1", "llama-3", True),
        ("model: openrouter/z-ai/glm", "openai", "https://openrouter.ai/api/v1", "z-ai/glm", True),
        ("model: bedrock/us.anthropic.claude", "litellm", None, "bedrock/us.anthropic.claude", True),
        ("model: azure/mine, api_base: https://mine.openai.azure.com", "litellm", "https://mine.openai.azure.com",
         "azure/mine", True),
        ("model: lm_studio/x, api_base: http://mac:1234/v1", "openai", "http://mac:1234/v1", "x", False),
        ("model: x, custom_llm_provider: hosted_vllm, api_base: http://h:1", "vllm", "http://h:1", "x", False),
        ("model: my-model, api_base: http://h:1", "openai", "http://h:1", "my-model", False),
        ("model: hosted_vllm/x, api_base: https://llm.example.com", "vllm", "https://llm.example.com", "x", True),
    ],
)  # fmt: skip
def test_providers(params: str, engine: str, url: str | None, model: str, cloud: bool) -> None:
    backend = one(params).snapshot.backends["m"]
    assert (backend.engine, backend.url, backend.model, backend.cloud) == (engine, url, model, cloud)


def test_a_public_host_that_is_no_known_cloud_is_to_be_looked_at() -> None:
    note = one("model: hosted_vllm/x, api_base: https://llm.example.com").note("model_list[0].litellm_params.api_base")
    assert note.kind == "to_do"
    assert "cloud: false" in str(note.problem.hint)


def test_an_address_in_a_variable_stays_there() -> None:
    made = one("model: hosted_vllm/x, api_base: os.environ/VLLM_URL")
    assert 'url: "${VLLM_URL}"' in made.text
    assert "cloud" not in made.draft.backends["m"].keys  # loading asks when the variable leads out of the LAN


@pytest.mark.parametrize(
    ("params", "path", "words"),
    [
        ("model: hosted_vllm/x", "model", "no api_base"),
        ("model: strange/x", "model", "provider of 'strange/x' is not known"),
        ("model: 'openai/*'", "model", "not a pattern"),
        ("model: hosted_vllm/x, api_base: 'http://h:99999'", "api_base", "not a URL"),
    ],
)
def test_a_deployment_that_cannot_be_used_is_told_and_left_out(params: str, path: str, words: str) -> None:
    good = "- {model_name: ok, litellm_params: {model: ollama/a, num_ctx: 8}}"
    made = imported("litellm", f"model_list:\n{good}\n- {{model_name: m, litellm_params: {{{params}}}}}\n")
    note = made.note(f"model_list[1].litellm_params.{path}")
    assert (note.kind, note.problem.line) == ("left_out", 3)
    assert words in note.problem.message
    assert list(made.snapshot.aliases) == ["ok"]


def test_shared_credentials_are_filled_in() -> None:
    text = """
        model_list: [{model_name: m, litellm_params: {model: hosted_vllm/x, litellm_credential_name: spark}}]
        credential_list:
          - credential_name: spark
            credential_values: {api_base: "http://spark1:8000", api_key: os.environ/SPARK_KEY}
    """
    made = imported("litellm", text)
    assert made.snapshot.backends["m"].url == "http://spark1:8000"
    assert 'api_key: "${SPARK_KEY}"' in made.text


def test_two_servers_of_one_model_are_told_apart_by_their_hosts(fleet: Imported) -> None:
    assert fleet.steps("fast")[0] == ["Qwen3-4B-Instruct-2507", "Qwen3-4B-Instruct-2507-12"]
