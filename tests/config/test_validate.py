"""What people get wrong in routes.yaml, and what they are told."""

from __future__ import annotations

import pytest

from gateway.config.load import load_text
from gateway.config.problems import ConfigError, Problem


def mistakes(text: str, environ: dict[str, str] | None = None) -> list[str]:
    """The error lines for `text`; an empty list when it loads."""
    try:
        load_text(text, "routes.yaml", environ or {})
    except ConfigError as error:
        return str(error).splitlines()
    return []


def oddities(text: str, environ: dict[str, str] | None = None) -> list[str]:
    """The warnings for `text`, without the one for listening to everybody."""
    loaded = load_text(text, "routes.yaml", environ or {})
    return [str(w) for w in loaded.warnings if w.path != "server.listen"]


FINE = 'backends:\n  a: {url: "http://192.168.1.11:8001"}\n  b: {url: "http://192.168.1.12:8001"}\n'

MANY = """\
server: {listen: 4000, shutdown: 5}
defaults:
  timeouts: {connect: 3, idl: 5s}
nodes: {spark1: {memory: 12}}
backends:
  qwen36:
    apibase: http://192.168.1.11:8001
    max_model_len: 131072
    max_num_seqs: 4
    auto_tools: on
    engine: vlm
  qwen37: {url: 192.168.1.11:8001, node: spark9}
  public: {engine: openai, url: "https://api.example.com/v1"}
  twice: {url: "htp://x"}
  twice: {url: "http://y"}
  ears: {engine: http, url: "http://spark1:8765"}
  bare: http://192.168.1.11:8001
  empty:
  claude: {engine: litellm, cloud: false}
  gemma4: {url: "http://192.168.1.12:99999", temperature: 1, api_key: "${NOPE}", timeouts: {first_byte: soon}}
aliases:
  reviewer:
    use:
      - [quen36, qwen37]
      - gemma4
    thinking: false
    cloud_when: [dwn]
  writer: [reviewer]
  nothing: []
  short: gemma4
  other: {use: [gemma4], also: [writer], rpm: 5}
clients:
  hermes: {key: 123}
  webui: {aliases: [reviewer]}
  ops: {key: $OPS_KEY, tasks: {alias: writr}}
model_list: []
"""

EXPECTED = """\
routes.yaml:1  server.listen: '4000' is not an address to listen on - write 0.0.0.0:4000 or 127.0.0.1:4000
routes.yaml:1  server.shutdown: '5' is not a duration (a number needs its unit) - write 250ms, 5s, 15m or 2h
routes.yaml:3  defaults.timeouts.connect: '3' is not a duration (a number needs its unit) - write 250ms, 5s, 15m or 2h
routes.yaml:3  defaults.timeouts.idl: unknown key 'idl' - did you mean 'idle'?
routes.yaml:4  nodes.spark1.memory: '12' is not a size (a number needs its unit) - write 64MiB or 119.67GiB
routes.yaml:7  backends.qwen36.apibase: unknown key 'apibase' - did you mean 'url'?
routes.yaml:8  backends.qwen36.max_model_len: unknown key 'max_model_len' - did you mean 'context'?
routes.yaml:9  backends.qwen36.max_num_seqs: unknown key 'max_num_seqs' - did you mean 'slots'?
routes.yaml:10  backends.qwen36.auto_tools: 'on' is not true or false - write true
routes.yaml:11  backends.qwen36.engine: 'vlm' is not one of vllm, openai, llamacpp, mlx, ollama, litellm, http, \
auto - did you mean 'vllm'?
routes.yaml:12  backends.qwen37.node: unknown node 'spark9' - did you mean 'spark1'?
routes.yaml:12  backends.qwen37.url: '192.168.1.11:8001' has no scheme - write http://192.168.1.11:8001
routes.yaml:13  backends.public.url: 'api.example.com' is not a private address: does a prompt leave the LAN? \
- say cloud: true, or cloud: false if it stays inside
routes.yaml:14  backends.twice.url: 'htp://x' has an unknown scheme - did you mean 'http://'?
routes.yaml:15  backends.twice: duplicate key, first on line 14 - only one can be meant
routes.yaml:16  backends.ears: engine http needs 'serves' - \
write serves: [transcriptions], [translations], [speech] or [images]
routes.yaml:17  backends.bare: must be a mapping, not a single value - write {url: "http://HOST:PORT"}
routes.yaml:18  backends.empty: nothing follows - it needs at least a url
routes.yaml:19  backends.claude.cloud: engine litellm always leaves the LAN - remove the key, or use engine openai
routes.yaml:19  backends.claude: engine litellm needs 'model' \
- write model: PROVIDER/MODEL, e.g. anthropic/claude-sonnet-5
routes.yaml:20  backends.gemma4.api_key: variable 'NOPE' is not set \
- set it in the environment or in .env, or write ${NOPE:-default}
routes.yaml:20  backends.gemma4.temperature: unknown key 'temperature' - here that is aliases.*.params
routes.yaml:20  backends.gemma4.timeouts.first_byte: 'soon' is not a duration \
- write 250ms, 5s, 15m or 2h, or auto or none
routes.yaml:20  backends.gemma4.url: 'http://192.168.1.12:99999' is not a URL - the port is a number up to 65535
routes.yaml:24  aliases.reviewer.use: unknown backend 'quen36' - did you mean 'qwen36'?
routes.yaml:26  aliases.reviewer.thinking: 'false' is not one of on, off - write off
routes.yaml:27  aliases.reviewer.cloud_when: 'dwn' is not one of down, too_long, incapable, busy - did you mean 'down'?
routes.yaml:28  aliases.writer.use: unknown backend 'reviewer' - that is an alias; steps name backends
routes.yaml:29  aliases.nothing: has no steps - write use: [BACKEND, FALLBACK]
routes.yaml:30  aliases.short: must be a mapping, not a single value - write a list of backends: [first, fallback]
routes.yaml:31  aliases.other.also: 'writer' is already the name of alias 'writer' - a name leads to one alias
routes.yaml:31  aliases.other.rpm: unknown key 'rpm' - it belongs under clients.*
routes.yaml:33  clients.hermes.key: must be text, in quotes
routes.yaml:34  clients.webui: 'key' is missing - write key: "${NAME}" or key: "sha256:<64 hex digits>"
routes.yaml:35  clients.ops.key: would be taken literally - write ${OPS_KEY}
routes.yaml:35  clients.ops.tasks.alias: unknown alias 'writr' - did you mean 'writer'?
routes.yaml:36  model_list: unknown key 'model_list' \
- LiteLLM's list: here `backends` say what exists and `aliases` say what clients may ask for
"""


def test_every_mistake_of_a_file_is_told_at_once_with_its_line() -> None:
    found = mistakes(MANY)
    assert sorted(found) == sorted(EXPECTED.splitlines())
    lines = [int(line.split(":")[1].split(" ")[0]) for line in found]
    assert lines == sorted(lines)


def test_a_misspelt_url_is_not_loaded_however_it_is_misspelt() -> None:
    for word in ("apibase", "api_base", "base_url", "uri", "ulr", "URL", "address"):
        found = mistakes(f'backends:\n  a: {{{word}: "http://192.168.1.11:8001"}}\n')
        assert found == [f"routes.yaml:2  backends.a.{word}: unknown key '{word}' - did you mean 'url'?"], word


def test_a_missing_url_is_an_error() -> None:
    assert mistakes("backends:\n  a: {slots: 4}\n") == [
        "routes.yaml:2  backends.a: 'url' is missing - write url: \"http://HOST:PORT\""
    ]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("192.168.1.11:8001", "has no scheme"),
        ("http:/192.168.1.11", "is not a URL"),
        ("http;//192.168.1.11", "is not a URL"),
        ("htps://192.168.1.11", "did you mean 'https://'?"),
        ("ftp://192.168.1.11", "unknown scheme"),
        ("http://", "names no host"),
        ("http://192.168.1.300:8001", "its host is not an address"),
        ("http://spark 1:8001", "its host is not a name"),
        ("http://192.168.1.11:800000", "the port is a number"),
        ("http://192.168.1.11:abc", "the port is a number"),
        ("http://192.168.1.11:8001/v1/chat/completions", "without /chat/completions"),
        ("http://192.168.1.11:8001/v1/audio/transcriptions", "without /audio/transcriptions"),
        ("http://192.168.1.11:8001/v1/audio/translations", "without /audio/translations"),
        ("http://192.168.1.11:8001/v1/audio/speech/", "without /audio/speech"),
        ("http://192.168.1.11:11434/api/generate", "without /api/generate"),
        ("http://192.168.1.11:8001/?a=b", "'?' part"),
        ("http://[::1", "is not a URL"),
    ],
)
def test_a_url_with_a_typo_is_an_error(url: str, says: str) -> None:
    found = mistakes(f"backends:\n  a:\n    url: '{url}'\n")
    assert len(found) == 1
    assert found[0].startswith("routes.yaml:3  backends.a.url: ")
    assert says in found[0]


def test_a_value_in_the_place_of_a_list_is_to_be_written_as_one() -> None:
    for key in ("cloud_when", "use", "also", "ask_all"):
        (found,) = mistakes(FINE + f"aliases: {{w: {{use: [a], {key}: down}}}}\n".replace("use: [a], use", "use"))
        assert found.endswith(" - write [down]"), found


def test_two_clients_cannot_share_a_key() -> None:
    found = mistakes(FINE + "clients:\n  x: {key: one}\n  y: {key: one}\n")
    assert found == ["routes.yaml:6  clients.y.key: the same key as client 'x' - each needs its own"]


def test_params_cannot_set_what_the_client_says() -> None:
    assert mistakes(FINE + "aliases:\n  w:\n    use: [a]\n    params:\n      model: x\n") == [
        "routes.yaml:8  aliases.w.params.model: 'model' cannot be set here - the client says it"
    ]


def test_a_file_without_backends_is_an_error() -> None:
    for text in ("", "# nothing\n", "backends: {}\n", "backends:\n"):
        assert "there is no backend" in mistakes(text)[0], text


def test_what_follows_from_a_reported_mistake_is_not_reported_again() -> None:
    text = 'backends:\n  a: {url: "${A_URL}"}\n  b: nonsense\naliases:\n  w: [a, b]\n'
    assert [line.split("  ")[1].split(":")[0] for line in mistakes(text)] == ["backends.a.url", "backends.b"]


def test_listening_to_everybody_without_clients_is_odd() -> None:
    def warned(text: str) -> bool:
        return any(w.path == "server.listen" for w in load_text(text, environ={}).warnings)

    assert warned(FINE)
    assert not warned(FINE + "clients: {x: {key: secret}}\n")
    for address in ("127.0.0.1:4000", "localhost:4000", "[::1]:4000"):
        assert not warned(f'server: {{listen: "{address}"}}\n{FINE}'), address


def test_further_addresses_have_ports_of_their_own() -> None:
    for also in ("127.0.0.1:4000", "0.0.0.0:1, 127.0.0.1:1"):
        text = f"server: {{listen: 127.0.0.1:4000, also_listen: [{also}]}}\n{FINE}"
        [line] = mistakes(text)
        assert "server.also_listen: each address needs a port of its own" in line
    assert "is not a list" in mistakes(f"server: {{also_listen: '127.0.0.1:1'}}\n{FINE}")[0]
    found = load_text(f"server: {{listen: 127.0.0.1:4000, also_listen: ['0.0.0.0:1']}}\n{FINE}", environ={})
    assert found.snapshot.server.also_listen == (("0.0.0.0", 1),)
    assert "server.also_listen" in [warning.path for warning in found.warnings]


def test_a_client_pattern_that_matches_nothing_is_odd() -> None:
    text = FINE + "aliases: {writer: {use: [a], also: [poet]}}\n"
    text += "clients:\n  x: {key: k, aliases: [writr, 'w*', 'spark-*', b, poet]}\n"
    assert oddities(text) == [
        "routes.yaml:6  clients.x.aliases: 'writr' matches no alias - did you mean 'writer'?",
        "routes.yaml:6  clients.x.aliases: 'spark-*' matches no alias",
        "routes.yaml:6  clients.x.aliases: 'poet' matches no alias - that is a further name of 'writer'",
    ]


def test_a_problem_prints_where_what_and_what_to_do() -> None:
    problem = Problem("routes.yaml", 14, "aliases.reviewer.use", "unknown backend 'quen36'", "did you mean 'qwen36'?")
    expected = "routes.yaml:14  aliases.reviewer.use: unknown backend 'quen36' - did you mean 'qwen36'?"
    assert str(problem) == expected
    assert str(Problem("routes.yaml", None, "", "not UTF-8 text")) == "routes.yaml  not UTF-8 text"


# -- traces -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{sample: 0.5}", "traces: 'endpoint' is missing"),
        ('{endpoint: "collector:4318"}', "traces.endpoint: must be a URL that starts with http:// or https://"),
        ('{endpoint: "http://c:4318", sample: 2}', "traces.sample: '2' is not a share"),
        ('{endpoint: "http://c:4318", sample: 10%}', "traces.sample: '10%' is not a share"),
    ],
)
def test_what_is_wrong_with_traces_is_said(written: str, said: str) -> None:
    (line,) = (line for line in mistakes(FINE + f"traces: {written}\n") if "traces" in line)
    assert said in line


def test_no_traces_are_made_unless_there_is_somewhere_to_send_them() -> None:
    for written in ("", "traces:\n", "traces: {endpoint: none, sample: 0.5}\n"):
        assert load_text(FINE + written, "routes.yaml", {}).snapshot.traces is None


def test_prompts_that_leave_the_lan_with_traces_are_a_warning() -> None:
    lan, cloud = (f"traces: {{endpoint: '{url}', prompts: true}}\n" for url in ("http://10.1.2.3:4318", "https://x.io"))
    assert oddities(FINE + lan) == []
    (warning,) = oddities(FINE + cloud)
    assert "prompts leave the LAN" in warning


def test_a_removed_key_is_to_be_deleted() -> None:
    [told] = mistakes(FINE + "aliases: {w: {use: [a], join_retries: true}}\n")
    assert "aliases.w.join_retries: unknown key" in told
    assert "was removed" in told
    assert "delete this line" in told
