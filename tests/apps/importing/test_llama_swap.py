"""llama-swap's config as a routes.yaml."""

from __future__ import annotations

import pytest

from tests.apps.importing.support import Imported, imported, imported_file


@pytest.fixture(scope="module")
def swap() -> Imported:
    return imported_file("llama-swap", "llama-swap.yaml")


def test_a_vllm_command_tells_its_window_slots_and_parsers(swap: Imported) -> None:
    backend = swap.snapshot.backends["qwen36"]
    assert (backend.engine, backend.model, backend.run) == ("vllm", "Qwen/Qwen3.6-35B-A3B", "on_demand")
    assert (backend.context, backend.slots) == (128_000, 4)
    assert (backend.tool_parser, backend.reasoning_parser, backend.auto_tools) == ("qwen3_xml", "qwen3", True)


def test_llama_cpp_shares_its_window_among_its_slots(swap: Imported) -> None:
    backend = swap.snapshot.backends["embedder"]
    assert (backend.engine, backend.context, backend.slots) == ("openai", 8192, 4)
    assert swap.snapshot.aliases["embedder"].listed is False


def test_automatic_ports_are_counted_up_in_the_order_of_the_names(swap: Imported) -> None:
    urls = {name: backend.url for name, backend in swap.snapshot.backends.items() if not backend.cloud}
    assert urls == {
        "qwen36": "http://localhost:9001",
        "embedder": "http://localhost:9000",
        "fixed": "http://127.0.0.1:8999",
    }
    assert swap.snapshot.backends["fixed"].model == "inner/name"


def test_aliases_and_variants_are_further_names_and_aliases(swap: Imported) -> None:
    alias, variant = swap.snapshot.aliases["qwen36"], swap.snapshot.aliases["qwen36:high"]
    assert alias.also == ("gpt-4o", "gpt-4o-mini")
    assert alias.params == {"top_p": 0.9}
    assert variant.params == {"top_p": 0.9, "chat_template_kwargs": {"reasoning_effort": "high"}}
    assert variant.steps == (("qwen36",),)


def test_a_peer_outside_the_lan_is_a_cloud_with_its_key(swap: Imported) -> None:
    backend = swap.snapshot.backends["glm-4.7"]
    assert (backend.cloud, backend.model, backend.url) == (True, "z-ai/glm-4.7", "https://openrouter.ai/api")
    assert swap.steps("z-ai/glm-4.7") == [["glm-4.7"]]
    assert 'api_key: "${OPENROUTER_API_KEY}"' in swap.text


def test_keys_are_clients_and_none_is_copied(swap: Imported) -> None:
    assert list(swap.snapshot.clients) == ["client1", "client2"]
    assert "sk-written-out-key" not in swap.text
    assert 'key: "${CLIENT_1_KEY}"' in swap.text
    assert 'key: "${HERMES_KEY}"' in swap.text


@pytest.mark.parametrize(
    ("path", "kind", "line"),
    [
        ("models.qwen36.cmd", "to_do", 8),
        ("models.qwen36.filters.stripParams", "left_out", 15),
        ("models.qwen36.filters.setParams", "changed", 16),
        ("groups", "left_out", 26),
        ("apiKeys[0]", "to_do", 5),
    ],
)
def test_what_is_not_the_same_is_told(swap: Imported, path: str, kind: str, line: int) -> None:
    note = swap.note(path)
    assert (note.kind, note.problem.line) == (kind, line)


def test_who_starts_a_model_from_now_on_is_told(swap: Imported) -> None:
    hint = swap.note("models.qwen36.cmd").problem.hint
    assert hint is not None
    assert "run: on_request with start and stop" in hint


def test_a_model_that_listens_nobody_knows_where_is_left_out() -> None:
    text = """
        models:
          a: {cmd: "serve --port 1", proxy: "http://h:${OTHER}"}
          b: {cmd: "llama-server --port ${PORT}"}
    """
    made = imported("llama-swap", text)
    assert list(made.snapshot.backends) == ["b"]
    assert made.note("models.a.proxy").kind == "left_out"


def test_a_further_name_leads_to_one_model() -> None:
    text = """
        models:
          a: {cmd: "llama-server --port ${PORT}", aliases: [x, b]}
          b: {cmd: "llama-server --port ${PORT}", aliases: [x, y]}
    """
    made = imported("llama-swap", text)
    assert {name: alias.also for name, alias in made.snapshot.aliases.items()} == {"a": ("x",), "b": ("y",)}
    told = [note for note in made.draft.notes if "already" in note.problem.message]
    assert [note.problem.path for note in told] == ["models.a.aliases[1]", "models.b.aliases[0]"]
    assert {note.problem.line for note in told} == {3, 4}


def test_a_key_that_comes_twice_is_one_client() -> None:
    keys = "apiKeys: [sk-one, sk-two, sk-one]"
    made = imported("llama-swap", f'{keys}\nmodels: {{m: {{cmd: "llama-server --port ${{PORT}}"}}}}')
    assert len(made.snapshot.clients) == 2


def test_macros_that_contain_themselves_end() -> None:
    made = imported("llama-swap", 'macros: {a: "${b}", b: "${a}"}\nmodels: {m: {cmd: "${a} --port ${PORT}"}}')
    assert made.snapshot.backends["m"].url == "http://localhost:5800"


def test_a_model_overrides_what_its_macro_says() -> None:
    text = """
        macros:
          llama: "llama-server --port ${PORT} -c 32768 -np 4"
          vllm: "vllm serve --port ${PORT} --max-model-len 4096 --max-num-seqs 8"
        models:
          a: {cmd: "${llama} --ctx-size 8192 --parallel 2"}
          b: {cmd: "${vllm} --max-model-len 8k org/b"}
    """
    a, b = imported("llama-swap", text).snapshot.backends.values()
    assert (a.context, a.slots) == (4096, 2)  # llama.cpp divides its window among its slots
    assert (b.context, b.slots, b.model) == (8000, 8, "org/b")


@pytest.mark.parametrize("key", ["strip_params", "forceParams"])
def test_a_filter_without_a_counterpart_is_told(key: str) -> None:
    made = imported("llama-swap", f'models: {{m: {{cmd: "llama-server --port ${{PORT}}", filters: {{{key}: top_k}}}}}}')
    assert made.note(f"models.m.filters.{key}").kind == "left_out"


def test_only_the_port_that_llama_swap_gives_is_called_automatic() -> None:
    text = """
        models:
          a: {cmd: "llama-server --port ${PORT}"}
          b: {cmd: "llama-server --port ${PORT}", proxy: "http://192.168.1.11:9999"}
    """
    made = imported("llama-swap", text)
    told = [made.note(f"models.{name}.cmd").problem.message for name in "ab"]
    assert ["automatic" in message for message in told] == [True, False]


def test_the_variables_and_the_idle_time_of_a_model_are_told() -> None:
    text = """
        models:
          a: {cmd: "llama-server --port ${PORT}", env: ["CUDA_VISIBLE_DEVICES=0", "HF_TOKEN=hf-secret"], ttl: 600}
          b: {cmd: "llama-server --port ${PORT}", env: [], ttl: 0}
    """
    made = imported("llama-swap", text)
    variables = made.note("models.a.env")
    assert variables.kind == "to_do"
    assert "hf-secret" not in str(variables)
    assert made.note("models.a.ttl").kind == "left_out"
    assert not {note.problem.path for note in made.draft.notes} & {"models.b.env", "models.b.ttl"}
