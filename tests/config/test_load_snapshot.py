"""What the rest of the gateway gets from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.load import load, load_text
from gateway.config.problems import ConfigError
from gateway.config.snapshot import Backend, Budget, Price, Snapshot


def snapshot(text: str) -> Snapshot:
    return load_text(text, "routes.yaml", {}).snapshot


def backend(settings: str, above: str = "") -> Backend:
    return snapshot(f'{above}\nbackends: {{a: {{url: "http://spark1:8001", {settings}}}}}\n').backends["a"]


def test_the_smallest_file_serves_a_backend_under_its_own_name() -> None:
    small = snapshot('backends:\n  spark-qwen36: {url: "http://192.168.1.11:8001"}\n')
    alias = small.resolve("spark-qwen36")
    assert alias is not None
    assert (alias.steps, alias.implicit) == ((("spark-qwen36",),), True)
    assert (small.server.host, small.server.port) == ("0.0.0.0", 4000)


def test_only_local_chat_backends_without_an_alias_are_offered_themselves() -> None:
    text = """
backends:
  a: {url: "http://spark1:8001"}
  b: {url: "http://spark1:8002"}
  c: {url: "http://spark1:8003"}
  claude: {engine: litellm, model: anthropic/x}
  cloud: {engine: openai, url: "https://api.example.com", cloud: true, model: m}
  ears: {engine: http, url: "http://spark1:8765", serves: [transcriptions]}
aliases:
  a: [b]
  w: {use: [b], also: [c]}
"""
    aliases = snapshot(text).aliases
    assert {name: alias.implicit for name, alias in aliases.items()} == {"a": False, "w": False, "b": True}
    loaded = snapshot(text)
    assert loaded.resolve("c") is loaded.aliases["w"]


@pytest.mark.parametrize(
    ("settings", "auto"),
    [
        ("slots: 1", None),
        ("tool_parser: hermes", True),
        ("tool_parser: none", False),
        ("tool_parser: hermes, auto_tools: false", False),
        ("auto_tools: true", True),
    ],
)
def test_auto_tools_follow_the_parser(settings: str, auto: bool | None) -> None:
    assert backend(settings).auto_tools is auto


@pytest.mark.parametrize(
    ("url", "cloud"),
    [
        ("http://192.168.1.11:8001", False),
        ("http://10.0.0.1:8001", False),
        ("http://127.0.0.1:8001", False),
        ("http://[fd00::1]:8001", False),
        ("http://spark1:8001", False),
        ("http://spark1.local:8001", False),
        ("http://spark1.home.arpa:8001", False),
    ],
)
def test_private_hosts_are_inside(url: str, cloud: bool) -> None:
    assert snapshot(f'backends: {{a: {{engine: openai, url: "{url}"}}}}\n').backends["a"].cloud is cloud


def test_a_url_is_kept_without_its_slash() -> None:
    assert snapshot('backends: {a: {url: "http://spark1:8001/v1/"}}\n').backends["a"].url == "http://spark1:8001/v1"


def test_money_and_sizes() -> None:
    found = backend("price: {input: 0.5, output: 2}, budget: 5 USD/day")
    assert (found.price, found.budget) == (Price(0.5, 2.0), Budget(5.0, "day"))
    assert backend("price: {image: 0.04}").price == Price(0.0, 0.0, image=0.04)
    text = 'server: {max_body: 1GiB, shutdown: 0s, listen: ":8080"}\nnodes: {n: {memory: 119.67GiB}}\n'
    loaded = snapshot(text + 'backends: {a: {url: "http://x:1", node: [n]}}\n')
    assert (loaded.server.max_body, loaded.server.shutdown) == (2**30, 0)
    assert (loaded.server.host, loaded.server.port) == ("0.0.0.0", 8080)
    assert loaded.nodes["n"].memory == round(119.67 * 2**30)
    assert loaded.backends["a"].nodes == ("n",)


def test_every_setting_of_an_alias_and_a_client_arrives() -> None:
    text = """
backends: {a: {url: "http://x:1"}, b: {url: "http://x:2"}}
aliases:
  w:
    use: [a]
    also: [v, "claude-*"]
    balance: round_robin
    on_busy: next
    cloud_when: [down, too_long, busy]
    on_unsupported: mend
    params: {temperature: 0.2, chat_template_kwargs: {x: true}}
    thinking: off
    min_max_tokens: 10000
    reasoning_field: both
    priority: batch
    listed: false
  j: {ask_all: [a, b]}
clients:
  c:
    key: k
    aliases: [w]
    rpm: 120
    tpm: none
    max_inflight: 4
    priority: batch
    local_only: true
    admin: true
    budget: 1 USD/month
    on_unsupported: strip
    tasks: {alias: v, thinking: off}
"""
    loaded = snapshot(text)
    w, c = loaded.aliases["w"], loaded.clients["c"]
    assert (w.also, w.balance, w.on_busy, w.on_unsupported) == (("v", "claude-*"), "round_robin", "next", "mend")
    assert (w.cloud_when, w.thinking, w.min_max_tokens) == (("down", "too_long", "busy"), "off", 10000)
    assert (w.reasoning_field, w.priority, w.listed) == ("both", "batch", False)
    assert w.params == {"temperature": 0.2, "chat_template_kwargs": {"x": True}}
    assert (loaded.aliases["j"].ask_all, loaded.aliases["j"].steps) == (("a", "b"), (("a", "b"),))
    assert (c.rpm, c.tpm, c.max_inflight, c.priority) == (120, None, 4, "batch")
    assert (c.local_only, c.admin, c.budget, c.on_unsupported) == (True, True, Budget(1.0, "month"), "strip")
    assert c.tasks is not None
    assert (c.tasks.alias, c.tasks.thinking) == ("v", "off")
    assert (c.may_use("w"), c.may_use("a")) == (True, False)
    assert loaded.resolve("claude-sonnet") is w


def test_aliases_that_can_leave_the_lan_are_known() -> None:
    text = 'backends: {a: {url: "http://x:1"}, c: {engine: litellm, model: m}}\naliases: {w: [a, c], v: [a]}\n'
    loaded = snapshot(text)
    assert {n: loaded.leaves_lan(alias) for n, alias in loaded.aliases.items()} == {"w": ("c",), "v": (), "a": ()}


def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_bytes(b"backends:\n  a: {url: 'http://10.0.0.1'}  # ok\n# caf\xe9\n")
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert str(caught.value) == f"{path}:3  not UTF-8 text - save the file as UTF-8"
