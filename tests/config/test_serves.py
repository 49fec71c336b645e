"""What `gateway check` says of backends that embed, rank or score, and of aliases that mix them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from gateway.cli.main import cli
from gateway.config.load import load_text
from gateway.config.problems import ConfigError

ADDRESS = "url: 'http://10.0.0.1:1'"


def routes(a: str, b: str = "", use: str = "[a, b]") -> str:
    return f"backends:\n  a: {{{ADDRESS}{a}}}\n  b: {{{ADDRESS}{b}}}\naliases: {{x: {use}}}\n"


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_text(text, environ={})
    return [f"{problem.path}: {problem.message}" for problem in caught.value.problems]


def warnings(text: str) -> list[str]:
    found = load_text(text, environ={}).warnings
    return [f"{w.path}: {w.message}" for w in found if w.path.startswith("aliases")]


EMBEDS = ", serves: [embeddings]"
ALIKE = f"{EMBEDS}, model: m"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (", serves: [speech]", "backends.a.serves: engine vllm does not serve speech"),
        (", engine: http, serves: [embeddings]", "backends.a.serves: engine http does not serve embeddings"),
        (", engine: ollama, model: m, serves: [rerank]", "backends.a.serves: engine ollama does not serve rerank"),
        (", serves: [rerank], dimensions: 8", "backends.a.dimensions: of a backend that embeds nothing"),
        (", serves: [chat], embedding_model: m", "backends.a.embedding_model: of a backend that embeds nothing"),
    ],
)
def test_what_cannot_be_served_is_a_mistake(key: str, said: str) -> None:
    assert said in mistakes(routes(key))


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (EMBEDS, ", serves: [chat]", "its backends serve different things (a: embeddings; b: chat)"),
        (ALIKE, f"{EMBEDS}, model: n", "'b' embeds with n, 'a' with m: they cannot be compared"),
        (
            f"{ALIKE}, dimensions: 8",
            f"{ALIKE}, dimensions: 9",
            "'b' gives vectors of 9 numbers, 'a' of 8: they cannot be compared",
        ),
        (
            f"{ALIKE}, embedding_model: one",
            f"{ALIKE}, embedding_model: other",
            "'b' embeds with other, 'a' with one: they cannot be compared",
        ),
    ],
)
def test_a_chain_of_what_does_not_go_together_is_a_mistake(a: str, b: str, said: str) -> None:
    assert mistakes(routes(a, b)) == [f"aliases.x.use: {said}"]


def test_one_model_under_two_names_is_fine() -> None:
    same = ", embedding_model: bge-m3"
    text = routes(f"{EMBEDS}, model: BAAI/bge-m3{same}", f"{EMBEDS}, engine: ollama, model: 'bge-m3:latest'{same}")
    assert warnings(text) == []
    assert warnings(routes(ALIKE, ALIKE)) == []


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (EMBEDS, "", "its backends serve embeddings, and 'b' does not say what"),
        (EMBEDS, ALIKE, "whether 'a' and 'b' embed with the same model is not known"),
        (
            ", serves: [chat, embeddings], model: m",
            ", serves: [chat, embeddings], model: n",
            "'b' embeds with n, 'a' with m: they cannot be compared",
        ),
    ],
)
def test_what_is_not_plain_is_a_warning(a: str, b: str, said: str) -> None:
    assert said in " ".join(warnings(routes(a, b)))


def test_chats_are_none_of_this() -> None:
    assert warnings(routes(", model: m", ", model: n")) == []
    asks_all = routes(", serves: [chat, embeddings], model: m", ", serves: [chat, embeddings], model: n")
    assert warnings(asks_all.replace("x: [a, b]", "x: {ask_all: [a, b]}")) == []


@pytest.mark.parametrize(
    ("flags", "serves"),
    [
        ("--runner pooling", ("embeddings", "rerank", "score")),
        ("--runner pooling --convert classify", ("rerank", "score")),
        ("--runner generate", ()),
        ("", ()),
    ],
)
def test_what_a_launch_serves_follows_from_its_runner(flags: str, serves: tuple[str, ...]) -> None:
    text = f"backends:\n  a:\n    {ADDRESS}\n    launch: {{command: 'vllm serve m --port 1 {flags}'}}\n"
    assert load_text(text, environ={}).snapshot.backends["a"].serves == serves
    if serves:
        stated = text.replace("    launch", "    serves: [chat]\n    launch")
        assert "--runner in launch.command" in " ".join(mistakes(stated))
        load_text(text.replace("    launch", "    serves: [rerank]\n    launch"), environ={})


def test_check_shows_for_what_a_backend_is_used(tmp_path: object) -> None:
    path = f"{tmp_path}/routes.yaml"
    with open(path, "w") as file:
        file.write(routes(f"{ALIKE}, context: 8192", ALIKE))
    found = CliRunner().invoke(cli, ["check", "--all", path])
    assert found.exit_code == 0
    assert found.output.count("skipped for anything but embeddings") == 4, "in the alias, and under their own names"
    assert "Hermes" not in found.output
