"""`gateway fleet check`: what it prints, its JSON and its exit code; `gateway check` shows the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.apps.fleet.lint import findings as fleet_check
from gateway.cli.main import cli

WRONG = """\
backends:
  a:
    url: http://192.168.1.11:8001
    model: Qwen/Qwen3.6-27B
    tool_parser: hermes
"""
FINE = WRONG.replace("hermes", "qwen3_xml")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fleet_check, "_CONTAINER_MARKS", ())
    return tmp_path


def run(*arguments: str, text: str = WRONG) -> Result:
    Path("routes.yaml").write_text(text)
    return CliRunner().invoke(cli, list(arguments))


def test_a_finding_says_where_why_and_what_to_write() -> None:
    result = run("fleet", "check")
    assert result.exit_code == 1
    assert result.output == (
        "error  line 5  backends.a.tool_parser  [parser-family]\n"
        "    'hermes' cannot read the calls of Qwen3.6: they stay text in the answer, or are swallowed\n"
        "    fix: start it with --tool-call-parser qwen3_xml, and write tool_parser: qwen3_xml\n"
        "    source: guide to vLLM on a Spark, 7.1.1; two Sparks, stability first\n"
        "\n"
        "1 error\n"
    )


def test_nothing_found_exits_0() -> None:
    result = run("fleet", "check", text=FINE)
    assert (result.exit_code, result.output) == (0, "nothing found\n")


def test_json_for_scripts() -> None:
    result = run("fleet", "check", "--json")
    assert result.exit_code == 1
    (found,) = json.loads(result.output)["findings"]
    assert list(found) == ["severity", "rule", "path", "line", "message", "fix"]
    assert [found[key] for key in list(found)[:4]] == ["error", "parser-family", "backends.a.tool_parser", 5]
    assert json.loads(run("fleet", "check", "--json", text=FINE).output) == {"findings": []}


def test_no_file_and_a_broken_file() -> None:
    assert CliRunner().invoke(cli, ["fleet", "check"]).exit_code == 2
    assert run("fleet", "check", text="backends: {a: {apibase: x}}\n").exit_code == 1


def test_own_rows_count_and_their_mistakes_are_told() -> None:
    Path("mine.yaml").write_text("families: {q: {match: qwen3, tool_parsers: [hermes]}}\n")
    assert run("fleet", "check", text=f"catalog: mine.yaml\n{WRONG}").exit_code == 0
    Path("mine.yaml").write_text("families: {q: {parser: hermes}}\n")
    for command in (("fleet", "check"), ("check",)):
        result = run(*command, text=f"catalog: mine.yaml\n{WRONG}")
        assert result.exit_code == 1
        assert "mine.yaml:1  families.q.parser: unknown field 'parser'" in result.output


def test_check_shows_the_same_findings_and_the_file_is_fine_all_the_same() -> None:
    result = run("check")
    assert result.exit_code == 0
    assert "\nFindings (gateway fleet check)\nerror  line 5  backends.a.tool_parser  [parser-family]\n" in result.output
    told = json.loads(run("check", "--json").output)
    assert told["ok"] is True
    assert told["findings"] == json.loads(run("fleet", "check", "--json").output)["findings"]


def test_a_mode_that_cannot_run_is_no_fine_file() -> None:
    serve = "vllm serve Qwen/Qwen3-4B-Instruct-2507 --max-model-len 16384 --gpu-memory-utilization"
    text = f"""\
nodes: {{spark1: {{address: 192.168.1.11, memory: 119.67GiB}}}}
backends:
  a: {{node: spark1, launch: {{command: {serve} 0.6 --port 8001}}}}
  b: {{node: spark1, launch: {{command: {serve} 0.5 --port 8002}}}}
modes:
  both: [a, b]
"""
    for command in (("fleet", "check"), ("check",)):
        result = run(*command, text=text)
        assert result.exit_code == 1
        assert "error  line 6  modes.both  [mode-conflict]" in result.output
    assert "routes.yaml: a mode cannot run (" in result.output
    assert json.loads(run("check", "--json", text=text).output)["ok"] is False
    assert run("check", text=text.replace("[a, b]", "[a]")).exit_code == 0


def test_a_profile_of_the_first_mode_changes_nothing_of_the_other_modes() -> None:
    serve = "vllm serve Qwen/Qwen3-4B-Instruct-2507 --max-model-len 16384 --gpu-memory-utilization"
    text = f"""\
nodes: {{spark1: {{address: 192.168.1.11, memory: 119.67GiB}}}}
backends:
  a:
    node: spark1
    launch: {{command: {serve} 0.3 --port 8001}}
    profiles: {{all: {{gpu-memory-utilization: 0.85}}}}
  b: {{node: spark1, launch: {{command: {serve} 0.4 --port 8002}}}}
modes:
  alone: {{backends: [a], profiles: {{a: all}}}}
  both: [a, b]
"""
    result = run("check", "--json", text=text)
    assert result.exit_code == 0
    assert (
        json.loads(result.output)["findings"]
        == json.loads(run("fleet", "check", "--json", text=text).output)["findings"]
    )


def test_in_a_container_localhost_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "backends: {a: {url: 'http://localhost:8001'}}\n"
    assert run("fleet", "check", text=text).output == "nothing found\n"
    (folder / ".dockerenv").touch()
    monkeypatch.setattr(fleet_check, "_CONTAINER_MARKS", (str(folder / ".dockerenv"),))
    assert "[url-localhost]" in run("fleet", "check", text=text).output


def test_check_says_whether_a_model_thinks_unless_it_is_told_not_to() -> None:
    assert "thinking optional, thinks unless told not to" in run("check", "--all", text=FINE).output
    gemma = FINE.replace("Qwen/Qwen3.6-27B", "google/gemma-4-31B-it")
    assert "thinking optional, thinks when told to" in run("check", "--all", text=gemma).output
    launch = """\
nodes: {n: {address: 192.168.1.11}}
backends:
  ds4:
    node: n
    launch:
      command: vllm serve deepseek-ai/DeepSeek-V4-Flash --default-chat-template-kwargs '{"thinking":true}'
"""
    assert "thinking optional, thinks unless told not to" in run("check", "--all", text=launch).output
    (alias,) = json.loads(run("check", "--json", text=FINE).output)["aliases"]
    assert (alias["members"][0]["thinking"], alias["members"][0]["thinks_by_default"]) == ("optional", True)
