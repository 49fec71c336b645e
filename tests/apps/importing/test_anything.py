"""Whatever stands in a llama-swap or Olla config: what comes out is loaded. (LiteLLM's is in test_litellm.py.)"""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.apps.importing import llama_swap, olla
from gateway.apps.importing.discovery import MODELS, OLLAMA_VERSION, Kind, ServerReply, identify
from gateway.apps.importing.draft import Draft
from gateway.apps.importing.output import render, verify_round_trip
from gateway.apps.importing.source import SourceFile, read_source
from gateway.engines.ollama.installed_models import INSTALLED, LOADED

WORDS = st.sampled_from(
    ["a", "b:c", "http://h:1", "${PORT}", "${env.X}", "${a}", "vllm serve m --max-model-len 8k", "", "é ü", "sk-abcdef",
     "none", "10s", "*", "'", "$", "https://x.example/v1", "/health", "localhost"]
)  # fmt: skip
GOOD = st.sampled_from(["http://h:1", "https://x.example/v1", "http://127.0.0.1:8080"])
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-5, 10**6), st.floats(allow_nan=False, width=32), WORDS)
ANY = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=5,
)


def some(*keys: str) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings with some of these keys, and one that nobody knows."""
    return st.dictionaries(st.sampled_from([*keys, "odd"]), st.one_of(WORDS, ANY), max_size=6)


def somewhere(url: str, *keys: str) -> st.SearchStrategy[dict[str, Any]]:
    """The same, where `url` is one of the keys, and mostly good: without a backend nothing is proved."""
    return st.builds(
        lambda found, good: {**found, **good}, some(url, *keys), st.one_of(GOOD.map(lambda u: {url: u}), st.just({}))
    )


MODEL = somewhere(
    "proxy",
    *("cmd", "aliases", "useModelName", "filters", "unlisted", "concurrencyLimit", "checkEndpoint", "ttl"),
)
FILTERED = st.builds(
    lambda model, filters: {**model, "filters": filters}, MODEL, some("setParams", "setParamsByID", "stripParams")
)
SWAP = st.fixed_dictionaries(
    {"models": st.dictionaries(WORDS, st.one_of(MODEL, FILTERED, ANY), max_size=4)},
    optional={
        "peers": st.dictionaries(WORDS, st.one_of(some("proxy", "models", "apiKey"), ANY), max_size=2),
        "macros": st.dictionaries(WORDS, LEAVES, max_size=3),
        "apiKeys": ANY,
        "startPort": LEAVES,
        "odd": ANY,
    },
)
ENDPOINT = somewhere("url", "name", "type", "auth", "health_check_url", "check_interval", "priority", "model_filter")
OLLA = st.fixed_dictionaries(
    {
        "discovery": st.fixed_dictionaries(
            {"static": st.fixed_dictionaries({"endpoints": st.lists(ENDPOINT, max_size=4)})}
        )
    },
    optional={"server": some("host", "port", "shutdown_timeout", "request_limits"), "odd": ANY},
)


def source(data: dict[str, Any]) -> SourceFile:
    return SourceFile("s.yaml", data, read_source("{}", "s.yaml").report)


def is_loaded(draft: Draft) -> None:
    if draft.backends:
        verify_round_trip(render(draft), draft, {})


@settings(max_examples=50)
@given(SWAP)
def test_llama_swap(data: dict[str, Any]) -> None:
    is_loaded(llama_swap.convert(source(data)))


@settings(max_examples=50)
@given(OLLA)
def test_olla(data: dict[str, Any]) -> None:
    is_loaded(olla.convert(source(data)))


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.sampled_from([MODELS, OLLAMA_VERSION, INSTALLED, LOADED]),
        st.builds(ServerReply, st.sampled_from([200, 401, 404]), ANY),
    )
)
def test_a_server_may_answer_anything(replies: dict[str, ServerReply]) -> None:
    server = identify("http://h:1", replies)
    assert server.kind in get_args(Kind)
    assert all(model.name and isinstance(model.name, str) for model in server.models)
    assert all(isinstance(model.context, int | None) for model in server.models)
