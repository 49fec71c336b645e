from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import cli

ROOT = Path(__file__).parents[4]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["check", *arguments])


def file(folder: Path, text: str) -> str:
    path = folder / "routes.yaml"
    path.write_text(text)
    return str(path)


CLOUDY = """\
backends:
  a: {url: "http://192.168.1.11:8001", context: 131072, slots: 4, tool_parser: hermes, thinking: never}
  b: {url: "http://192.168.1.12:8001", context: 65536, tool_parser: none, run: on_demand}
  c: {engine: litellm, model: anthropic/x, context: 200000}
aliases:
  w: [a, b, c]
"""


def test_an_engine_without_its_extra_is_told_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.config.backends.find_spec", lambda _: None)
    path = file(tmp_path, CLOUDY)
    result = run(path)
    assert result.exit_code == 1
    assert f"{path}: an extra is not installed" in result.output
    assert f"{path}:4  backends.c.engine: engine litellm needs the extra 'cloud'" in result.output
    assert "pip install --require-hashes -r requirements-cloud.lock (with make: make run CLOUD=1)" in result.output
    assert json.loads(run(path, "--json").output)["ok"] is False
    assert (
        run(
            file(tmp_path, CLOUDY.replace("engine: litellm,", "engine: openai, url: 'https://x.example', cloud: true,"))
        ).exit_code
        == 0
    )


def test_a_good_file_is_explained_step_by_step(tmp_path: Path) -> None:
    path = file(tmp_path, CLOUDY)
    result = run(path, "--all")
    assert result.exit_code == 0
    text, verdict = result.output.split("Aliases\n", 1)[1].split("\n\n" + path)
    assert verdict == ": fine (3 backends, 3 aliases, 0 clients)\n"
    assert "Aliases\n" not in run(path).output
    assert (
        text
        == """\
  w
    1. a  vllm  192.168.1.11:8001  window 131,072  slots 4  tools hermes  thinking never
       skipped beyond 131,072 tokens
       skipped when thinking on is demanded
    2. b  vllm  192.168.1.12:8001  window 65,536  slots 8 (assumed)  tools none  thinking -
       skipped while it is not there (on_demand)
       skipped beyond 65,536 tokens
       skipped for requests with tools
    3. c  litellm  litellm  window 200,000  slots unlimited (assumed)  tools learned  thinking -
  CLOUD
       skipped unless everything before is down
       skipped for local_only clients and requests
       skipped for /completions
  a (a backend under its own name)
    1. a  vllm  192.168.1.11:8001  window 131,072  slots 4  tools hermes  thinking never
       skipped when thinking on is demanded
  b (a backend under its own name)
    1. b  vllm  192.168.1.12:8001  window 65,536  slots 8 (assumed)  tools none  thinking -
       skipped while it is not there (on_demand)
       skipped for requests with tools

Aliases that can leave the LAN
  w: to c (when everything before is down)""".replace("thinking -\n  CLOUD", "thinking -  CLOUD")
    )


def test_a_cloud_that_no_reason_lets_in_is_said_to_be_never_entered(tmp_path: Path) -> None:
    text = run(file(tmp_path, CLOUDY.replace("w: [a, b, c]", "w: {use: [a, c], cloud_when: []}")), "--all").output
    assert "       skipped always: cloud_when of the alias is empty\n  a (" in text
    assert "  w: to c (never entered)\n" in text


def test_the_shipped_file_is_fine_and_nothing_leaves_the_lan() -> None:
    result = run(str(ROOT / "routes.yaml"))
    assert result.exit_code == 0
    assert "Aliases that can leave the LAN\n  none can\n" in result.output
    assert "Findings" not in result.output
    assert "Hermes" not in result.output  # accepted where it stands
    assert result.output.splitlines()[-1].endswith("routes.yaml: fine (10 backends, 18 aliases, 0 clients)")


def test_mistakes_are_printed_line_by_line_and_exit_1(tmp_path: Path) -> None:
    path = file(tmp_path, "backends:\n  a: {apibase: x}\n  b: {slots: x}\n")
    result = run(path)
    assert result.exit_code == 1
    assert result.output.splitlines()[0] == (
        f"{path}:2  backends.a.apibase: unknown key 'apibase' - did you mean 'url'?"
    )
    assert result.output.endswith("\n3 mistakes: the file is not loaded.\n")


def test_a_file_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    assert run(str(tmp_path / "none.yaml")).exit_code == 2
    assert run("--config", str(tmp_path / "none.yaml")).exit_code == 2
    assert run("--nonsense").exit_code == 2


def test_json_for_scripts(tmp_path: Path) -> None:
    good = json.loads(run(file(tmp_path, CLOUDY), "--json").output)
    assert good["ok"] is True
    assert good["leaves_lan"] == {"w": ["c"]}
    assert [a["name"] for a in good["aliases"]] == ["w", "a", "b"]
    assert good["aliases"][0]["members"][1]["window"] == 65536
    result = run(file(tmp_path, "backends: {a: {apibase: x}}\n"), "--json")
    bad = json.loads(result.output)
    assert (result.exit_code, bad["ok"]) == (1, False)
    assert bad["problems"][0]["path"] == "backends.a.apibase"
    assert bad["problems"][0]["line"] == 1


MODES = """\
backends:
  a: {url: "http://192.168.1.11:8001", context: 131072}
  b: {url: "http://192.168.1.12:8001", context: 65536, run: on_demand}
aliases: {w: [a, b]}
modes: {daily: [a], large: [b]}
"""


def test_what_is_outside_the_mode_is_shown_as_parked(tmp_path: Path) -> None:
    path = file(tmp_path, MODES)
    first, other = run(path, "--all").output, run(path, "--all", "--mode", "large").output
    assert "in mode daily of daily, large" in first
    assert "in mode large of daily, large" in other
    for output, parked in ((first, "2. b"), (other, "1. a")):
        lines = output.splitlines()
        after = lines[next(i for i, line in enumerate(lines) if line.strip().startswith(parked)) + 1]
        mode = "daily" if parked == "2. b" else "large"
        assert after.strip() == f"skipped always: it is parked (outside mode '{mode}')"
    answer = json.loads(run(path, "--mode", "large", "--json").output)
    assert (answer["mode"], answer["aliases"][0]["window"]) == ("large", 65536)
    assert json.loads(run(file(tmp_path, CLOUDY), "--json").output)["mode"] is None


def test_the_aliases_that_nobody_serves_in_the_mode_are_named(tmp_path: Path) -> None:
    more = "aliases: {w: [a, b], only-a: [a], also-a: {use: [[a]]}, cloudy: [a, c], sky: [c]}"
    cloud = "  c: {engine: litellm, model: anthropic/x, context: 200000}\naliases"
    path = file(tmp_path, MODES.replace("aliases: {w: [a, b]}", more).replace("aliases", cloud, 1))
    first, other = run(path).output, run(path, "--mode", "large").output
    assert "nobody serves" not in first
    assert "in this mode nobody serves only-a, also-a, cloudy\n" in other, "a mode is no reason to leave the LAN"
    assert json.loads(run(path, "--mode", "large", "--json").output)["unserved"] == ["only-a", "also-a", "cloudy"]


def test_a_mode_that_is_not_in_the_file_is_wrong_usage(tmp_path: Path) -> None:
    result = run(file(tmp_path, MODES), "--mode", "dayly")
    assert result.exit_code == 2
    assert "there is no mode 'dayly'" in result.output
    assert "it has daily, large" in result.output
    assert "it has no modes" in run(file(tmp_path, CLOUDY), "--mode", "daily").output
