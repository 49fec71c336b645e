"""No problem shows what a variable held, however short it is and wherever it is used."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from gateway.config.load import load_text
from gateway.config.problems import ConfigError, Report
from gateway.config.secret import ExpandedText, shown

B = 'backends: {q: {url: "http://x:1"}}\n'
NODES = "nodes: {n: {address: 10.0.0.1}}\n"


def told(text: str, environ: dict[str, str]) -> str:
    """All errors, or all warnings where there is no error."""
    try:
        return "\n".join(map(str, load_text(text, "routes.yaml", environ).warnings))
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize("value", ["ab12x", "zz", "sk-do-not-show-me"])
@pytest.mark.parametrize(
    "text",
    [
        'backends: {q: {url: "${V}"}}',
        B + 'aliases: {w: ["${V}"]}',
        B + 'aliases: {w: {ask_all: ["${V}"]}}',
        B + 'aliases: {w: {use: [q], balance: "${V}", cloud_when: ["${V}"]}}',
        NODES + 'backends: {q: {url: "http://x:1", node: "${V}"}}',
        'backends: {q: {url: "http://x:1", health: {path: "${V}"}}}',
        'backends: {q: {url: "http://x:1", tool_parser: "${V}", reasoning_parser: "${V}"}}',
        'backends: {q: {url: "http://x:1", engine: "${V}"}}',
        B + 'clients: {c: {key: k, aliases: ["${V}"], tasks: {alias: "${V}"}}}',
        B + 'nodes: {n: {address: "${V}:1", ssh: "-${V}", exporter: "${V}", memory: "${V}"}}',
        B + 'modes: {d: ["${V}"], e: {backends: [q], profiles: {q: "${V}"}}}',
        B + 'server: {hosts: ["http://${V}"], proxies: ["${V}"], listen: "${V}", env_file: "${V}"}',
        B + 'traces: {endpoint: "${V}", sample: "${V}"}\nalerts: {webhook: "${V}"}',
    ],
)
def test_a_wrong_value_is_told_by_the_name_of_its_variable(text: str, value: str) -> None:
    found = told(text + "\n", {"V": value})
    assert value not in found
    assert "${V}" in found or "endpoint" in found


@pytest.mark.parametrize(
    ("text", "value", "parts"),
    [
        ('backends: {q: {engine: openai, model: m, url: "${V}"}}', "https://api.example.com/v1", ["api.example.com"]),
        ('backends: {q: {engine: openai, model: m, url: "https://${V}"}}', "api.example.com", ["example"]),
        (B + 'server: {proxies: ["${V}"]}', "10.1.2.3/8", ["10.1.2.3", "10.0.0.0"]),
        (B + 'server: {hosts: ["${V}"]}', "Key One", ["key one", "Key"]),
        (B + 'clients: {c: {key: "${V}"}}', "$OTHER", ["OTHER"]),
        (B + 'server: {env_file: "${V}"}', "/secret/place", ["secret", "place"]),
    ],
)
def test_a_part_of_a_value_is_not_told_either(text: str, value: str, parts: list[str]) -> None:
    found = told(text + "\n", {"V": value})
    assert not [part for part in parts if part in found.replace(B, "")], found
    assert "routes.yaml:" in found


def test_a_value_that_is_used_in_another_section_is_told_by_its_variable() -> None:
    text = """
nodes: {n: {address: "${ADDR}"}}
backends:
  q: {url: "http://x:1", serves: [embeddings], embedding_model: "${MODEL}"}
  r: {url: "http://x:2", serves: [embeddings], model: other}
  s: {node: n, launch: {command: vllm serve m}}
aliases: {a: [q, r]}
"""
    found = told(text, {"MODEL": "sk-live-1234", "ADDR": "spark.example.com"})
    assert "'q' with ${MODEL}" in found
    assert "backends.s: 'http://${ADDR}:8000' is not a private address" in found
    assert not re.search("sk-live|example", found)


def test_a_number_of_a_variable_is_told_by_its_variable() -> None:
    text = NODES + 'backends: {q: {node: n, context: "${V}", launch: {command: vllm serve m --max-model-len 5}}}\n'
    assert "backends.q.context: ${V} here, but --max-model-len" in told(text, {"V": "4711"})
    window = 'backends: {q: {url: "http://x:1", context: "${V}"}}\naliases: {w: [q]}\n'
    assert "a window of '${V}' tokens" in told(window, {"V": "4711"})
    embedders = 'backends: {q: {url: "http://x:1", serves: [embeddings], model: m, dimensions: "${V}"}, '
    embedders += 'r: {url: "http://x:2", serves: [embeddings], model: m, dimensions: 3}}\naliases: {w: [q, r]}\n'
    assert "'q' of ${V}" in told(embedders, {"V": "4711"})


def test_a_value_that_the_file_itself_has_as_a_name_is_no_secret() -> None:
    text = (
        'nodes: {spark1: {}}\nbackends: {q: {url: "http://x:1", node: "${N}"}, r: {url: "http://x:2", node: spark9}}\n'
    )
    assert "unknown node 'spark9' - did you mean 'spark1'?" in told(text, {"N": "spark1"})


def test_a_value_that_lost_its_type_is_hidden_in_the_whole_file() -> None:
    report = Report("routes.yaml")
    report.came_from_outside(("backends", "a", "model"), "sk-live-1234", "${KEY}")
    report.error(("clients",), "no sk-live-1234 here", "not sk-live-1234")
    assert [(p.message, p.hint) for p in report.errors] == [("no ${KEY} here", "not ${KEY}")]


def test_an_expanded_value_is_its_value_except_where_it_is_shown() -> None:
    value: str = ExpandedText(" ab12x ", "${PIN}").strip()
    assert (value, len(value), {value: 1}["ab12x"], str(value)) == ("ab12x", 5, 1, "ab12x")
    assert (f"'{value}'", repr(value), shown(value)) == ("'${PIN}'", "'${PIN}'", "'${PIN}' (as expanded)")
    assert [type(made) for made in (copy.deepcopy(value), pickle.loads(pickle.dumps(value)), str(value))] == [str] * 3


def test_what_is_loaded_knows_nothing_of_variables() -> None:
    text = 'nodes: {n: {address: "${A}"}}\nbackends: {q: {node: "${N}", launch: {command: vllm serve m}}}\n'
    text += 'aliases: {w: {use: ["${Q}"], also: ["${M}"], params: {stop: "${M}"}}}\n'
    loaded = load_text(text, "routes.yaml", {"A": "10.0.0.1", "N": "n", "M": "some-name", "Q": "q"})
    backend, alias = loaded.snapshot.backends["q"], loaded.snapshot.aliases["w"]
    assert (backend.url, backend.nodes, alias.steps) == ("http://10.0.0.1:8000", ("n",), (("q",),))
    texts = (backend.url, *backend.nodes, *alias.steps[0], *alias.also, alias.params["stop"])
    assert {type(one) for one in texts} == {str}
    assert pickle.loads(pickle.dumps(loaded)).snapshot == loaded.snapshot
