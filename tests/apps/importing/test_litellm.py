"""LiteLLM's proxy config as a routes.yaml: what the gateway then loads, and what is told of the rest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.apps.importing.litellm import convert
from gateway.apps.importing.output import render, verify_round_trip
from gateway.apps.importing.source import SourceFile, read_source
from tests.apps.importing.support import Imported, imported, imported_file


@pytest.fixture(scope="module")
def fleet() -> Imported:
    return imported_file("litellm", "litellm-config.yaml")


def one(params: str, more: str = "") -> Imported:
    """A single deployment called `m`, its litellm_params in flow style."""
    return imported("litellm", f"model_list: [{{model_name: m, litellm_params: {{{params}}}}}]\n{more}")


@pytest.mark.parametrize(("fallback", "steps"), [("chat", 1), ("other", 1), ("same", 2)])
def test_a_chain_stays_with_one_kind_of_request_and_one_space_of_vectors(fallback: str, steps: int) -> None:
    models = {
        "e": deployment("e", mode="embedding"),
        "chat": deployment("chat", host="h2"),
        "other": deployment("other", host="h3", mode="embedding"),
        "same": deployment("same", host="h4", model="e", mode="embedding"),
    }
    listed = ", ".join([models["e"], models[fallback]])
    made = imported("litellm", f"model_list: [{listed}]\nlitellm_settings: {{fallbacks: [{{e: [{fallback}]}}]}}\n")
    assert len(made.steps("e")) == steps
    told = [note for note in made.draft.notes if "has no step on" in note.problem.message]
    assert len(told) == 2 - steps


def deployment(name: str, *, model: str = "", host: str = "h1", mode: str = "chat") -> str:
    params = f"{{model: hosted_vllm/{model or name}, api_base: 'http://{host}:1'}}"
    return f"{{model_name: {name}, litellm_params: {params}, model_info: {{mode: {mode}}}}}"


def test_a_key_that_is_written_out_is_never_copied(fleet: Imported) -> None:
    told = fleet.text + "".join(str(note.problem) for note in fleet.draft.notes)
    for key in ("sk-written-out-4b", "sk-master-written-out"):
        assert key not in told
    assert 'api_key: "${FAST_API_KEY}"' in fleet.text
    note = fleet.note("model_list[2].litellm_params.api_key")
    assert (note.kind, note.problem.line) == ("to_do", 20)
    assert note.problem.hint == "put FAST_API_KEY=... into .env"


def test_different_keys_get_different_names() -> None:
    items = "".join(
        f"- {{model_name: g, litellm_params: {{model: groq/m{i}, api_key: gsk-{key}}}}}\n"
        for i, key in enumerate(("one", "two", "one"))
    )
    made = imported("litellm", f"model_list:\n{items}")
    keys = [entry.keys["api_key"] for entry in made.draft.backends.values()]
    assert keys == ["${GROQ_API_KEY}", "${GROQ_API_KEY_2}", "${GROQ_API_KEY}"]


def test_the_master_key_becomes_an_admin_client(fleet: Imported) -> None:
    client = fleet.snapshot.clients["master"]
    assert client.admin
    assert 'key: "${LITELLM_MASTER_KEY}"' in fleet.text
    assert any("sha256:" in str(note.problem.hint) for note in fleet.draft.notes)


def test_without_a_master_key_nobody_needs_one() -> None:
    assert not one("model: ollama/a, num_ctx: 8").snapshot.clients
    off = "general_settings: {master_key: sk-abcdef, disable_key_check: true}"
    assert not one("model: ollama/a, num_ctx: 8", off).snapshot.clients


def test_one_name_several_times_stands_side_by_side_and_order_makes_steps(fleet: Imported) -> None:
    first, second, *_ = fleet.steps("fast")
    assert len(first) == 2
    assert second == ["qwen3:8b"]
    assert fleet.snapshot.aliases["fast"].balance == "least_busy"
    assert fleet.snapshot.aliases["sonnet"].balance == "affinity"


def test_fallbacks_are_later_steps(fleet: Imported) -> None:
    writer = fleet.steps("writer")
    assert writer[0] == ["Qwen3-Next-80B-A3B-Instruct-FP8"]
    assert writer[1:] == [*fleet.steps("fast")[:2], ["cloud"]]
    assert fleet.steps("fast")[-1] == ["sonnet"]  # of the context window
    assert fleet.note("litellm_settings.context_window_fallbacks").kind == "changed"


def test_a_fallback_that_does_not_exist_is_told(fleet: Imported) -> None:
    assert "'nobody'" in fleet.note("litellm_settings.fallbacks[1]").problem.message


def test_a_cloud_behind_the_lan_is_told_to_wait_its_turn(fleet: Imported) -> None:
    assert fleet.snapshot.aliases["writer"].cloud_when == ("down",)
    assert "cloud_when" in str(fleet.note("model_list[0]").problem.hint)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ("litellm_settings: {default_fallbacks: [b]}", [["a"], ["b"]]),
        ("router_settings: {fallbacks: [{'*': [b]}]}", [["a"], ["b"]]),
        ("router_settings: {fallbacks: [{a: [{model: b}]}]}", [["a"], ["b"]]),
        ("router_settings: {fallbacks: [{a: [bb]}], model_group_alias: {bb: b}}", [["a"], ["b"]]),
        ("router_settings: {fallbacks: [{b: [a]}]}", [["a"]]),
        ("router_settings: {fallbacks: [{a: [a, b, b]}]}", [["a"], ["b"]]),
        ("router_settings: {fallbacks: nonsense}", [["a"]]),
    ],
)
def test_where_fallbacks_may_stand(settings: str, steps: list[list[str]]) -> None:
    models = "".join(f"- {{model_name: {n}, litellm_params: {{model: ollama/{n}, num_ctx: 8}}}}\n" for n in "ab")
    assert imported("litellm", f"model_list:\n{models}{settings}\n").steps("a") == steps


def test_group_aliases_are_further_names(fleet: Imported) -> None:
    assert fleet.snapshot.aliases["writer"].also == ("gpt-4o",)
    assert fleet.snapshot.aliases["fast"].also == ("quick",)


def test_what_is_a_name_already_is_no_further_name() -> None:
    text = """
        model_list:
          - {model_name: a, litellm_params: {model: ollama/a, num_ctx: 8}}
          - {model_name: b, litellm_params: {model: ollama/b, num_ctx: 8}}
        router_settings: {model_group_alias: {b: a, "two words": a, c: b}}
    """
    made = imported("litellm", text)
    assert {name: alias.also for name, alias in made.snapshot.aliases.items()} == {"a": (), "b": ("c",)}
    assert made.note("router_settings.model_group_alias.b").kind == "changed"
    assert any("'two words' cannot be a further name" in note.problem.message for note in made.draft.notes)


def test_a_glob_is_a_further_name_of_what_leads_to_the_same_place() -> None:
    text = """
        model_list:
          - {model_name: claude-*, litellm_params: {model: hosted_vllm/q, api_base: "http://h:1"}}
          - {model_name: qwen, litellm_params: {model: hosted_vllm/q, api_base: "http://h:1"}}
    """
    made = imported("litellm", text)
    assert made.snapshot.aliases["qwen"].also == ("claude-*",)
    assert "claude" not in made.snapshot.aliases


def test_a_glob_of_its_own_gets_a_name(fleet: Imported) -> None:
    assert fleet.snapshot.aliases["claude"].also == ("claude-*",)


def test_parameters_of_a_deployment_are_those_of_its_alias(fleet: Imported) -> None:
    assert fleet.snapshot.aliases["writer"].params == {"temperature": 0.3}
    assert fleet.snapshot.aliases["reviewer"].params == {"temperature": 0.1}


def test_parameters_that_deployments_do_not_share_are_told() -> None:
    text = """
        model_list:
          - {model_name: m, litellm_params: {model: ollama/a, num_ctx: 8, top_p: 0.9, seed: 1}}
          - {model_name: m, litellm_params: {model: ollama/b, num_ctx: 8, top_p: 0.9}}
    """
    made = imported("litellm", text)
    assert made.snapshot.aliases["m"].params == {"top_p": 0.9}
    assert made.note("model_list[0].litellm_params.seed").kind == "left_out"


def test_a_body_that_vllm_knows_is_passed_on() -> None:
    made = one("model: ollama/a, num_ctx: 8, extra_body: {chat_template_kwargs: {enable_thinking: false}}")
    assert made.snapshot.aliases["m"].params == {"chat_template_kwargs": {"enable_thinking": False}}


def test_what_looks_like_a_variable_in_a_body_is_none() -> None:
    made = one("model: ollama/a, num_ctx: 8, stop: ['${END}'], extra_body: {model: x, options: {a: '${B}'}}")
    assert made.snapshot.aliases["m"].params == {"stop": ["${END}"], "options": {"a": "${B}"}}
    assert made.note("model_list[0].litellm_params.extra_body.model").kind == "left_out"


def test_a_name_that_no_alias_can_have_is_changed_and_told() -> None:
    made = imported("litellm", "model_list: [{model_name: my model!, litellm_params: {model: ollama/a, num_ctx: 8}}]")
    assert "my-model" in made.snapshot.aliases
    assert made.note("model_list[0]").problem.hint == "it is my-model"


@pytest.mark.parametrize(
    ("path", "kind", "line"),
    [
        ("model_list[1].litellm_params.timeout", "changed", 14),
        ("model_list[1].litellm_params.rpm", "left_out", 15),
        ("model_list[2].litellm_params.weight", "left_out", 21),
        ("router_settings.num_retries", "changed", 53),
        ("router_settings.cooldown_time", "changed", 54),
        ("litellm_settings.drop_params", "changed", 58),
        ("litellm_settings.success_callback", "left_out", 61),
        ("general_settings.database_url", "left_out", 65),
    ],
)
def test_every_setting_without_a_counterpart_is_told_with_its_line(
    fleet: Imported, path: str, kind: str, line: int
) -> None:
    note = fleet.note(path)
    assert (note.kind, note.problem.line) == (kind, line)


def test_a_setting_that_nobody_knows_is_told_too() -> None:
    made = one("model: ollama/a, num_ctx: 8, flux: 1", "strange: 1\nrouter_settings: {odd: 1}")
    for path in ("strange", "router_settings.odd", "model_list[0].litellm_params.flux"):
        assert made.note(path).kind == "left_out"


def test_the_largest_body_is_taken_over(fleet: Imported) -> None:
    assert fleet.snapshot.server.max_body == 32 * 1024 * 1024


WORDS = st.sampled_from(["ollama/a", "hosted_vllm/b", "http://h:1/v1", "${X}", "os.environ/Y", "m", "n*", "", "é ü",
                         "0x1F", "sk-abcdef", "1d", "*", "a b: c", "'", '"', "none", "true", "gpt-4o"])  # fmt: skip


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-5, 10**6), st.floats(allow_nan=False, width=32), WORDS)


ANY = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=6,
)


PARAMS = ["api_base", "api_key", "num_ctx", "order", "extra_body", "temperature", "rpm", "max_budget",
          "budget_duration", "input_cost_per_token", "custom_llm_provider", "litellm_credential_name"]  # fmt: skip


MODELS = st.sampled_from(
    ["ollama/a", "hosted_vllm/b", "openai/c", "claude-x", "groq/d*", "azure/${e}", "f", "ollama/g:1"]
)


DEPLOYMENT = st.fixed_dictionaries(
    {
        "model_name": st.one_of(WORDS, ANY),
        "litellm_params": st.fixed_dictionaries(
            {"model": st.one_of(MODELS, MODELS, ANY)}, optional={key: st.one_of(WORDS, ANY) for key in PARAMS}
        ),
    },
    optional={"model_info": st.dictionaries(st.sampled_from(["mode", "max_input_tokens", "supports_vision"]), LEAVES)},
)


SETTINGS = st.dictionaries(
    st.sampled_from(["fallbacks", "context_window_fallbacks", "default_fallbacks", "model_group_alias", "master_key",
                     "routing_strategy", "max_request_size_mb", "odd"]),
    st.one_of(ANY, st.lists(st.dictionaries(WORDS, st.lists(WORDS, max_size=3), max_size=2), max_size=3)),
)  # fmt: skip


@settings(max_examples=50)
@given(
    st.lists(DEPLOYMENT, max_size=4),
    st.dictionaries(st.sampled_from(["router_settings", "litellm_settings", "general_settings", "odd"]), SETTINGS),
)
def test_whatever_stands_in_the_file_what_comes_out_is_loaded(models: list[Any], more: dict[str, Any]) -> None:
    source = read_source("{}", "s.yaml")
    draft = convert(SourceFile("s.yaml", {"model_list": models, **more}, source.report))
    if draft.backends:
        verify_round_trip(render(draft), draft, {})
