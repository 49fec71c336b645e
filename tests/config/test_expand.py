"""`${VAR}`, `${file:...}`, the env file, and that none of it shows what it held."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gateway.config.expand import parse_env
from gateway.config.load import LoadedFile, load, load_text
from gateway.config.problems import ConfigError
from gateway.config.snapshot import Secret

SECRET = "sk-do-not-show-me"


def write(folder: Path, text: str, env: str | None = None, env_name: str = ".env") -> Path:
    (folder / "routes.yaml").write_text(text)
    if env is not None:
        (folder / env_name).write_text(env)
    return folder / "routes.yaml"


def keyed(key: str) -> str:
    return f'backends:\n  a: {{url: "http://spark1:8001", api_key: {key}}}\n'


def api_key(loaded: LoadedFile) -> str | None:
    key = loaded.snapshot.backends["a"].api_key
    return key.reveal() if key else None


def refused(text: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_text(text, "routes.yaml", environ or {})
    return str(caught.value)


def test_variables_defaults_and_literals() -> None:
    environ = {"KEY": SECRET, "EMPTY": ""}
    for written, expected in [
        ('"${KEY}"', SECRET),
        ("'x-${KEY}-y'", f"x-{SECRET}-y"),
        ('"${OTHER:-fallback}"', "fallback"),
        ('"${EMPTY:-fallback}"', "fallback"),
        ('"${OTHER:-}"', None),
        ('"$${KEY}"', "${KEY}"),
    ]:
        assert api_key(load_text(keyed(written), environ=environ)) == expected, written


def test_an_unset_variable_is_an_error_with_its_name_line_and_path() -> None:
    assert refused(keyed('"${NOPE}"')) == (
        "routes.yaml:2  backends.a.api_key: variable 'NOPE' is not set "
        "- set it in the environment or in .env, or write ${NOPE:-default}"
    )
    assert "variable 'EMPTY' is empty" in refused(keyed('"${EMPTY}"'), {"EMPTY": ""})


@pytest.mark.parametrize("written", ["${A:-${B}}", "${", "${}", "${a b}", "${env:A}"])
def test_a_malformed_reference_is_an_error(written: str) -> None:
    assert "backends.a.api_key: '${" in refused(keyed(f'"{written}"'), {"A": "1", "B": "2"})


def test_a_value_cannot_change_the_structure() -> None:
    environ = {"URL": 'http://spark1:1", cloud: true, x: "'}
    assert "backends.a.url" in refused('backends: {a: {url: "${URL}"}}\n', environ)


def test_keys_are_not_expanded() -> None:
    found = refused('backends:\n  "${NAME}": {url: "http://spark1:1"}\n', {"NAME": "a"})
    assert "a name that cannot be used" in found


def test_variables_may_hold_numbers_and_booleans() -> None:
    text = 'backends: {a: {url: "http://x:1", slots: "${SLOTS}", vision: "${V}"}}\naliases:\n  w:\n    use: [a]\n'
    text += "    params:\n      temperature: ${T}\n"
    snapshot = load_text(text, environ={"SLOTS": "4", "V": "true", "T": "0.5"}).snapshot
    assert (snapshot.backends["a"].slots, snapshot.backends["a"].vision) == (4, True)
    assert snapshot.aliases["w"].params == {"temperature": 0.5}


def test_files_are_read_relative_to_routes_yaml(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET + "\n")
    assert api_key(load(write(tmp_path, keyed('"${file:key}"')), {})) == SECRET
    assert api_key(load(write(tmp_path, keyed(f'"${{file:{tmp_path / "key"}}}"')), {})) == SECRET
    with pytest.raises(ConfigError, match="file 'nope' cannot be read - no such file"):
        load(write(tmp_path, keyed('"${file:nope}"')), {})
    (tmp_path / "key").write_text("\n")
    with pytest.raises(ConfigError, match="file 'key' is empty"):
        load(write(tmp_path, keyed('"${file:key}"')), {})


def test_the_env_file_is_read_at_every_load_and_the_environment_wins(tmp_path: Path) -> None:
    path = write(tmp_path, keyed('"${KEY}"'), "KEY=one\n")
    assert api_key(load(path, {})) == "one"
    (tmp_path / ".env").write_text("KEY=two\n")
    loaded = load(path, {})
    assert api_key(loaded) == "two"
    assert list(loaded.sources) == [tmp_path / "routes.yaml", tmp_path / ".env"]
    assert api_key(load(path, {"KEY": "three"})) == "three"


def test_only_an_env_file_that_is_named_must_exist(tmp_path: Path) -> None:
    plain = keyed("x")
    assert load(write(tmp_path, plain), {})
    assert load(write(tmp_path, plain + "server: {env_file: .env}\n"), {})
    assert load(write(tmp_path, plain + "server: {env_file: none}\n", "not a line\n"), {})
    with pytest.raises(ConfigError, match=r"routes.yaml:3  server.env_file: 'other.env': there is no such file"):
        load(write(tmp_path, plain + "server: {env_file: other.env}\n"), {})
    load(write(tmp_path, keyed('"${K}"') + "server: {env_file: other.env}\n", "K=1\n", "other.env"), {})


def test_env_lines_are_read_as_a_shell_would() -> None:
    text = '\ufeff# comment\n\nA=1\nexport B = two words # comment\nC=\'x # y\'\nD="a\\nb \\"q\\"" # c\nE=\nF=a#b\n'
    assert parse_env(text, ".env") == (
        {"A": "1", "B": "two words", "C": "x # y", "D": 'a\nb "q"', "E": "", "F": "a#b"},
        [],
    )


def test_a_broken_env_line_is_an_error_that_does_not_show_it(tmp_path: Path) -> None:
    path = write(tmp_path, keyed("x"), f"A=1\n{SECRET}\nB='{SECRET}\n")
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert [(p.line, p.message) for p in caught.value.problems] == [
        (2, "not a line of NAME=value"),
        (3, "a quote that is not closed on its line"),
    ]
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        'backends: {a: {url: "${S}"}}',
        'backends: {a: {url: "http://u:${S}@x:1"}}',
        'backends: {a: {url: "http://x:1", engine: "${S}"}}',
        'backends: {a: {url: "http://x:1", slots: "${S}"}}',
        'backends: {a: {url: "http://x:1", timeouts: {idle: "${S}"}}}',
        'backends: {a: {url: "http://x:1", api_key: "${S} \\n"}}',
        'backends: {a: {url: "http://x:1", cloud: "${S}", budget: "${S}", vision: "${S}"}}',
        'backends: {a: {url: "http://x:1"}}\nserver: {shared: "${S}", listen: "${S}", max_body: "${S}"}',
        'backends: {a: {url: "http://x:1"}}\nserver: {shared: "sk-do-not-show-me"}',
        'backends: {a: {url: "http://x:1"}}\nalerts: {webhook: "sk-do-not-show-me", telegram: {token: "${S}"}}',
        'backends: {a: {url: "http://x:1", node: "${S}", tool_parser: "${S}"}}\nnodes: {n: {}}\naliases: {w: ["${S}"]}',
        'backends: {a: {url: "http://x:1"}}\nclients: {c: {key: "", aliases: ["${S}"], tasks: {alias: "${S}"}}}',
        'backends: {a: {url: "http://sk-do-not-show-me@x:1"}}',
        'backends: {a: {url: "ttp://u:sk-do-not-show-me@x:1"}}',
        'backends: {a: {url: "http://x:1"}}\nclients: {c: {key: "sha256:sk-do-not-show-me"}}',
        'backends: {a: {url: "http://x:1"}}\nclients: {c: {key: "sk-do-not-show-me é"}}',
        'backends: {a: {url: "http://x:1"}}\nclients: {c: {key: [sk-do-not-show-me]}}',
    ],
)
def test_no_error_shows_a_secret(line: str) -> None:
    assert SECRET not in refused(line + "\n", {"S": SECRET})


def test_no_repr_shows_a_secret() -> None:
    text = f"""
server: {{shared: "redis://:{SECRET}@x:6379/0"}}
backends: {{a: {{url: "http://x:1", api_key: {SECRET}}}}}
clients: {{c: {{key: {SECRET}}}}}
alerts: {{telegram: {{token: {SECRET}, chat: "1"}}, webhook: "https://x.invalid/{SECRET}", deadman: "https://x.invalid/{SECRET}"}}
"""
    loaded = load_text(text, environ={})
    assert SECRET not in repr(loaded)
    assert SECRET not in str(loaded.warnings)
    assert loaded.snapshot.alerts.webhook == Secret(f"https://x.invalid/{SECRET}")


def test_client_keys_are_kept_as_digests() -> None:
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    text = 'backends: {a: {url: "http://x:1"}}\nclients:\n  c: {key: "%s"}\n'
    for written in (SECRET, f"sha256:{digest}", f"sha256:{digest.upper()}"):
        assert load_text(text % written, environ={}).snapshot.clients["c"].key_sha256 == digest


def test_a_literal_variable_of_another_kind_is_refused_as_a_key() -> None:
    for written, says in [("$KEY", "write ${KEY}"), ("os.environ/KEY", "write ${NAME}")]:
        assert says in refused(keyed(f'"{written}"'))


def test_a_wrong_value_is_shown_as_it_was_written() -> None:
    assert refused('backends: {a: {url: "http://x:1", slots: "${S}"}}\n', {"S": "many"}) == (
        "routes.yaml:1  backends.a.slots: '${S}' (as expanded) is not a whole number - write a number or none"
    )
    assert "backends.a.url: '${S}' (as expanded) has no scheme" in refused(
        'backends: {a: {url: "${S}"}}\n', {"S": SECRET}
    )


def test_a_variable_that_is_no_text_is_an_error() -> None:
    environ = {"KEY": b"caf\xe9".decode(errors="surrogateescape")}  # as Python hands out such bytes
    text = 'backends: {a: {url: "http://spark1:1", api_key: "${KEY}"}}\n'
    assert "backends.a.api_key: a variable in it holds bytes that are not UTF-8 text" in refused(text, environ)
