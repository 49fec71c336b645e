"""The documentation says what the code does: every name is there, every link leads somewhere, every snippet runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx
import jsonschema
import pytest
from ruamel.yaml import YAML

from gateway.cli.main import cli, commands
from gateway.config.load import load_text
from gateway.config.schema import json_schema
from gateway.domain.endpoints import ENDPOINTS
from gateway.domain.health_state import State
from gateway.errors import CATALOGUE, STREAM_INTERRUPTED, context_length_exceeded
from gateway.inspection.policy import KINDS as VIOLATIONS
from gateway.metrics.registry import MetricFamily, Metrics
from gateway.routing.plan import KINDS
from tests.demo_process import PATIENCE, ROOT, Demo, needs_curl, running_demo

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
SOURCE = {path: path.read_text() for path in sorted((ROOT / "gateway").rglob("*.py"))}
README = (ROOT / "README.md").read_text()
SCHEMA = json_schema()


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def rows(text: str) -> dict[str, str]:
    """Table rows by the first `name` in their first cell."""
    found = re.finditer(r"^\| `([^`]+)`.*$", text, re.M)
    return {match[1]: match[0] for match in found}


# -- every name is documented -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", CATALOGUE.values(), ids=lambda code: code.name)
def test_every_error_is_documented_with_its_status(code: Any) -> None:
    row = rows(page("errors"))[code.name]
    status = "in the stream" if code.name == "stream_interrupted" else str(code.status)
    assert f"| {status} |" in row


def test_no_error_is_documented_that_does_not_exist() -> None:
    assert set(rows(page("errors"))) == set(CATALOGUE)


def test_an_error_is_said_to_be_raised_exactly_when_something_raises_it() -> None:
    code_of = r'(?:GatewayError\(|code = |else )\s*"(\w+)"'
    raised = {name for text in SOURCE.values() for name in re.findall(code_of, text)}
    raised |= {name for text in SOURCE.values() for name in re.findall(r'code = "(\w+)" if', text)}
    unraised = {name for name, row in rows(page("errors")).items() if "Not raised yet" in row}
    assert unraised == set(CATALOGUE) - raised


def test_the_wording_that_agents_act_on_is_quoted_as_it_is() -> None:
    assert context_length_exceeded(131072, 140000).message in page("errors")
    assert STREAM_INTERRUPTED in page("errors")
    assert STREAM_INTERRUPTED in page("request-path")


def test_every_response_header_is_documented_and_no_other() -> None:
    named = {name for text in SOURCE.values() for name in re.findall(r"x-gateway-[a-z-]*[a-z]", text)}
    named |= {f"x-gateway-{word}" for word in ("fallback", "routed")}  # put together from the plan's word
    headers = page("request-path")
    documented = {name.partition(":")[0] for name in rows(headers) if name.startswith("x-gateway-")}
    assert documented == named
    assert {"x-request-id", "retry-after"} <= set(rows(headers))


def test_every_metric_is_documented_with_its_labels_and_no_other() -> None:
    families = [family for family in vars(Metrics()).values() if isinstance(family, MetricFamily)]
    table = rows(page("metrics"))
    assert families
    for family in families:
        cells = table[family.name].split("|")
        assert re.findall(r"`(\w+)`", cells[2]) == list(family._labels), family.name
    named = {name for text in SOURCE.values() for name in re.findall(r'"(gateway_[a-z_]+)"', text)}
    assert set(table) == named
    for name in re.findall(r"\bgateway_[a-z_]+", page("metrics")):
        assert name.removesuffix("_bucket") in named, name


def test_every_kind_of_violation_is_documented() -> None:
    added = {kind for text in SOURCE.values() for kind in re.findall(r'violations\.add\("(\w+)"\)', text)}
    told = {kind for text in SOURCE.values() for kind in re.findall(r'return "(prompt_cut|tool_choice_ignored)"', text)}
    assert added <= set(VIOLATIONS)  # tests/inspection/test_compatibility_page.py has these
    assert [kind for kind in {*added, *told} if f"`{kind}`" not in page("compatibility")] == []


def leaves(command: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    """(words, command) of each command below it that is not a group."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, *path, name)


def documented_options() -> set[tuple[str, str]]:
    """(option, command) of the reference; a row without a command is of the command above it."""
    found: set[tuple[str, str]] = set()
    words = ""
    for line in page("reference").partition("\n## Commands\n")[2].splitlines():
        command, options, *_ = (*line.split(" | "), "", "")
        if named := re.match(r"\| `gateway ((?:[a-z]+ ?)+)", command):
            words = named[1].strip()
        found |= {(option, words) for option in re.findall(r"`(--?[a-z-]+)`", options)}
    return found


@pytest.mark.parametrize("name", commands())
def test_every_command_is_documented_with_its_options(name: str) -> None:
    text, options = page("reference"), documented_options()
    missing = set()
    for words, command in leaves(cli.load(name), name):
        assert re.search(rf"^\|[^|]*`gateway {words}\b", text, re.M), words
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                for option in (*parameter.opts, *parameter.secondary_opts):
                    if (option, words) not in options:
                        missing.add(f"{words} {option}")
    assert missing == set()


def test_no_option_is_documented_that_does_not_exist() -> None:
    have = {
        (option, words)
        for name in commands()
        for words, command in leaves(cli.load(name), name)
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert documented_options() - have == set()


def test_no_command_is_documented_that_does_not_exist() -> None:
    for path in PAGES:
        named = re.findall(r"(?:`|^|bin/)gateway ([a-z]+)\b", path.read_text(), re.M)
        assert set(named) <= set(commands()), path.name


@pytest.mark.parametrize("state", list(State))
def test_every_state_is_documented(state: State) -> None:
    assert f"| `{state}` |" in page("health")


def test_every_reason_to_skip_or_leave_a_backend_is_documented() -> None:
    text = page("failover")
    assert [kind for kind in KINDS if f"`{kind}`" not in text] == []


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_every_inference_path_is_documented(endpoint: Any) -> None:
    assert f"`/v1{endpoint.path}`" in page("operating")


# -- nothing leads nowhere --------------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    titles = re.findall(r"^#+ +(.+)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_link_is_dead(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", page("index")))
    assert linked == {path.name for path in DOCS.glob("*.md")} - {"index.md"}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_file_that_is_named_exists(path: Path) -> None:
    named = re.findall(r"`((?:gateway|tests|docs|deploy|bench|loadtests)/[\w./-]*\w/?)`", path.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_curl_that_sends_json_to_the_gateway_declares_it(path: Path) -> None:
    """Without it curl declares a form, which is a 415."""
    commands = re.findall(r"^ *curl .*$", path.read_text().replace("\\\n", ""), re.M)
    sent = [command for command in commands if " -d " in command and "/_sim" not in command]
    assert [command for command in sent if "content-type: application/json" not in command] == []


def test_every_part_of_the_status_page_is_explained_under_its_own_title() -> None:
    shown = re.findall(r'<h2 id="[^"]*"[^>]*>([^<]+)</h2>', (ROOT / "gateway/web/index.html").read_text())
    headings = "\n".join(re.findall(r"^## (.*)$", page("status-page"), re.M)).lower()
    assert {"Operation", "Events"} <= set(shown)
    assert [title for title in shown if title.lower() not in headings and title != "Try an alias"] == []


def test_every_make_target_is_in_the_list_of_targets() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert phony is not None
    listed = re.findall(r"`make ([a-z-]+)`", page("commands").partition("\n## make\n")[2])
    assert set(phony[1].split()) <= set(listed)


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for path in PAGES:
        named = re.findall(r"(?:`|^)make ([a-z-]+)", path.read_text(), re.M)
        assert set(named) <= targets, path.name


# -- examples are whole ------------------------------------------------------------------------------------------------


def examples(path: Path) -> list[str]:
    """The YAML of this page that is a `routes.yaml`, or a part of one."""
    found = re.findall(r"^```yaml\n(.*?)^```$", path.read_text(), re.M | re.S)
    return [text for text in found if set(YAML(typ="safe", pure=True).load(text)) <= set(SCHEMA["properties"])]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_example_of_routes_yaml_is_valid(path: Path) -> None:
    """One that has backends loads as it stands, unless it says that it is a part."""
    for text in examples(path):
        jsonschema.validate(YAML(typ="safe", pure=True).load(text), {**SCHEMA, "required": []})
        if re.search(r"^backends:", text, re.M) and not text.startswith("# part\n"):
            load_text(text, "routes.yaml", {name: f"value-of-{name}" for name in re.findall(r"\$\{(\w+)", text)})


# -- what the README shows is what happens ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with running_demo(tmp_path_factory.mktemp("demo")) as running:
        yield running


def snippets(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


def run(demo: Demo, command: list[str], folder: Path) -> str:
    """The snippet's output, with the demo's ports in it. curl fails on an error status."""
    command = [part.replace("http://127.0.0.1:4000", demo.url) for part in command]
    command = [part.replace("http://127.0.0.1:4001", demo.control) for part in command]
    (folder / ".curlrc").write_text('fail\nsilent\nshow-error\nnoproxy = "*"\n')
    environ = {**os.environ, "CURL_HOME": str(folder), "NO_PROXY": "*"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_curl
def test_the_readmes_curls_do_what_it_says(demo: Demo, tmp_path: Path) -> None:
    first, killed = snippets("bash")
    answer = json.loads(run(demo, ["bash", "-euo", "pipefail", "-c", first], tmp_path))
    assert "204" in answer["choices"][0]["message"]["content"]
    said = run(demo, ["bash", "-euo", "pipefail", "-c", killed], tmp_path)
    headers = dict(re.findall(r"^(x-gateway-[\w-]+): (.*?)\r?$", said, re.M))
    assert headers["x-gateway-backend"] != "qwen36"
    assert headers["x-gateway-fallback"]
    assert "204" in said


def test_the_readmes_python_runs(demo: Demo, tmp_path: Path) -> None:
    (code,) = snippets("python")
    assert len(run(demo, [sys.executable, "-c", code], tmp_path).split()) == 20


def test_the_readmes_error_is_what_the_gateway_says(demo: Demo) -> None:
    shown = re.search(r'^(\{"error":.*\})$', README, re.M)
    asked = re.search(r"The model '([\w-]+)' does not exist", README)
    assert shown is not None
    assert asked is not None
    body: dict[str, Any] = {"model": asked[1], "messages": []}
    reply = httpx.post(f"{demo.url}/v1/chat/completions", json=body, timeout=PATIENCE, trust_env=False)
    assert reply.status_code == 404
    assert reply.text == shown[1]


@needs_curl
def test_the_commands_page_steers_the_simulator_as_it_says(demo: Demo, tmp_path: Path) -> None:
    curls = re.findall(r"^(curl .*)$", page("commands"), re.M)
    assert len(curls) == 4
    for curl in curls:
        run(demo, ["bash", "-c", curl], tmp_path)
