"""A value means the same whether it stands in the file or comes from a variable."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gateway.config.load import load_text
from gateway.config.snapshot import Snapshot

SHIPPED = Path(__file__).parents[2] / "routes.yaml"
MANY_KEYS = """\
server:
  listen: "127.0.0.1:4000"
  data: ./state
  hosts: [Spark.lan]
  proxies: [10.0.0.0/8, 172.17.0.1]
  shared: redis://cache.lan:6379/0
  memory: 4GiB
  shutdown: 90s
nodes:
  one: {address: "fd00::11", memory: 119GiB, exporter: "http://one:9835/metrics", ssh: ops@one}
  two: {address: Spark2.lan}
backends:
  launched: {node: one, launch: {command: "vllm serve org/m --port 8001"}}
  plain: {url: "http://10.0.0.2:8001/v1/", node: two, model: m, api_key: key-1, context: 4096, slots: 4, vision: true}
  served: {url: "http://10.0.0.3:1", engine: openai, server: sglang, model: m, tool_parser: hermes, kv_pool: 9000}
  vectors: {url: "http://10.0.0.4:1", serves: [embeddings], model: e, embedding_model: e5, dimensions: 384}
  speech: {url: "http://10.0.0.5:1", engine: http, serves: [speech], health: {path: /ready, every: 9s}}
  away: {url: "https://api.example.com/v1", cloud: true, engine: openai, model: x, price: {input: 0.5, output: 1.5}}
aliases:
  main: {use: [launched, [plain, served], away], also: [gpt-5, "c-*"], balance: least_busy, cloud_when: [down, busy]}
  set: {use: [plain], params: {temperature: 0.2, stop: end}, thinking: "off", on_unsupported: strip}
  both: {ask_all: [plain, served]}
  say: [speech]
  embed: [vectors]
clients:
  app: {key: key-2, aliases: [main, set], rpm: 60, budget: 5 USD/day, priority: batch, tasks: {alias: set}}
alerts: {webhook: "http://hooks.lan/x", telegram: {token: "1:abc", chat: "-100"}}
traces: {endpoint: "http://otel.lan:4318", sample: 0.5}
"""


def leaves(held: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, Any, Any]]:
    """(what holds the value, its key or index, the value). What is left to the engine is no variable of ours."""
    for key, value in list(held.items() if isinstance(held, dict) else enumerate(held)):
        here = (*path, key)
        if here[:1] == ("backends",) and here[2:3] in (("launch",), ("profiles",), ("start",), ("stop",)):
            continue
        if isinstance(value, dict | list):
            yield from leaves(value, here)
        elif value is not None and "${" not in str(value):
            yield held, key, value


def loaded(document: Any, environ: dict[str, str]) -> Snapshot:
    """Written without braces: in quotes, the value of a variable is text also where a number is free (`params`)."""
    text, yaml = io.StringIO(), YAML(typ="safe")
    yaml.default_flow_style = False
    yaml.dump(document, text)
    return load_text(text.getvalue(), environ=environ).snapshot


def as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("text", [MANY_KEYS, SHIPPED.read_text()], ids=["many keys", "shipped"])
def test_each_value_may_come_from_a_variable(text: str) -> None:
    document = YAML(typ="safe").load(text)
    plain = loaded(document, {})
    for held, key, value in leaves(document):
        held[key] = "${V}"
        assert loaded(document, {"V": as_text(value)}) == plain, (key, value)
        held[key] = value


@pytest.mark.parametrize("text", [MANY_KEYS, SHIPPED.read_text()], ids=["many keys", "shipped"])
def test_all_values_may_come_from_variables_at_once(text: str) -> None:
    document, environ = YAML(typ="safe").load(text), {}
    plain = loaded(document, {})
    for number, (held, key, value) in enumerate(leaves(document)):
        environ[f"V{number}"] = as_text(value)
        held[key] = f"${{V{number}}}"
    assert loaded(document, environ) == plain
