"""The Grafana dashboard and the alert rules of deploy/ name only metrics and labels that exist, and all that matter."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from ruamel.yaml import YAML

from gateway.apps.alerts.alert import Kind
from gateway.config.load import load_text
from gateway.domain.health_state import State
from gateway.observe.gauges import COURSES
from gateway.runtime.gateway import Gateway

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES_FILE = DEPLOY / "prometheus-rules.yml"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards/gateway.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
OF_THE_SCRAPE = {"up", "job", "instance"}  # what Prometheus adds itself
NOT_SHOWN = {
    "gateway_build_info",
    "gateway_alias_on_fallback",  # is told by gateway_alias_course
    "gateway_audio_seconds_total",  # few fleets speak
}

promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")


def yaml_of(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text())


RULES: list[dict[str, Any]] = yaml_of(RULES_FILE)["groups"][0]["rules"]


def known() -> dict[str, set[str]]:
    """Sample name as PromQL has it -> its labels, of a gateway that has not begun to run."""
    gateway = Gateway(load_text("backends: {a: {url: 'http://127.0.0.1:1'}}", "routes.yaml", {}).snapshot)
    found: dict[str, set[str]] = {}
    for family in gateway.metrics.registry.collect():
        labels = {*getattr(family, "_labelnames", ())}
        if family.type == "histogram":
            found[f"{family.name}_bucket"] = {*labels, "le"}
            found[f"{family.name}_sum"] = found[f"{family.name}_count"] = labels
        else:
            found[f"{family.name}_total" if family.type == "counter" else family.name] = labels
    return found


KNOWN = known()


def panel_expressions() -> Iterator[tuple[str, str, str]]:
    """(panel, expression, legend)."""
    for panel in PANELS:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"], annotation["titleFormat"]


EXPRESSIONS = [
    *panel_expressions(),
    *((rule["alert"], rule["expr"], " ".join(rule["annotations"].values())) for rule in RULES),
]


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:gateway|process)_\w+", re.sub(r'"[^"]*"', '""', expression)))


def labels_in(expression: str) -> set[str]:
    """Those that are selected, and those that are grouped by."""
    found = set(re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", expression))
    for group in re.findall(r"\b(?:by|on|without|ignoring) \(([^)]*)\)", expression):
        found |= {label.strip() for label in group.split(",")}
    return found


def labels_shown(text: str) -> set[str]:
    """Of a legend, or of a rule's words."""
    return set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text))


@pytest.mark.parametrize(("name", "expression", "shown"), EXPRESSIONS, ids=[name for name, _, _ in EXPRESSIONS])
def test_only_metrics_and_labels_that_exist_are_named(name: str, expression: str, shown: str) -> None:
    metrics = metrics_in(expression)
    assert metrics or "up" in expression
    assert metrics <= KNOWN.keys()
    has = OF_THE_SCRAPE.union(*(KNOWN[metric] for metric in metrics))
    assert labels_in(expression) <= has
    assert labels_shown(shown) <= has
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        if "rate(" in expression:  # what was summed away cannot be shown
            assert labels_shown(shown) <= {label.strip() for label in grouped.split(",")}


def test_the_words_that_are_selected_exist() -> None:
    for _, expression, _ in EXPRESSIONS:
        states = re.findall(r'\bstate=~?"([\w|]+)"', expression)
        assert {word for words in states for word in words.split("|")} <= set(State)
        assert set(re.findall(r'\bcourse="(\w+)"', expression)) <= set(COURSES)


def test_every_metric_of_ours_is_on_the_dashboard() -> None:
    shown = set().union(*(metrics_in(expression) for _, expression, _ in panel_expressions()))
    shown |= {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    ours = {re.sub(r"_(bucket|sum|count)$", "", name) for name in KNOWN if name.startswith("gateway_")}
    assert ours - shown == NOT_SHOWN


@pytest.mark.parametrize(
    ("title", "label", "words"), [("State", "state", [*State]), ("Who serves", "course", [*COURSES])]
)
def test_each_state_and_each_course_has_a_colour_of_its_own(title: str, label: str, words: list[str]) -> None:
    (panel,) = (panel for panel in PANELS if panel["title"] == title)
    (target,) = panel["targets"]
    numbers = dict(re.findall(rf'{label}="(\w+)"}} \* (\d+)', target["expr"]))
    (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
    assert {word: mapping["options"][number]["text"] for word, number in numbers.items()} == {w: w for w in words}


# -- as Grafana wants it ----------------------------------------------------------------------------------------------


def test_the_dashboard_is_found_and_has_what_grafana_needs() -> None:
    (provider,) = yaml_of(DEPLOY / "grafana/provisioning/dashboards/gateway.yml")["providers"]
    mounted = yaml_of(DEPLOY / "docker-compose.yml")["services"]["grafana"]["volumes"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in mounted
    assert DASHBOARD["title"] == DASHBOARD["uid"] == "spark-gateway"
    assert DASHBOARD["schemaVersion"] >= 39
    assert "id" not in DASHBOARD  # given by the Grafana that imports it


def test_every_panel_asks_the_prometheus_that_was_chosen() -> None:
    (source, *others) = DASHBOARD["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    asked = [*others, *DASHBOARD["annotations"]["list"], *(panel for panel in PANELS if panel["type"] != "row")]
    asked += [target for panel in PANELS for target in panel.get("targets", ())]
    assert all(one["datasource"] == DATASOURCE for one in asked)
    for variable in others:
        asked_for = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
        assert asked_for is not None
        metric, label = asked_for.groups()
        assert label in KNOWN[metric]
    named = {variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    for _, expression, _ in panel_expressions():
        assert set(re.findall(r"\$(\w+)", expression)) <= named


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    taken: dict[tuple[int, int], str] = {}
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


# -- rules ------------------------------------------------------------------------------------------------------------


def test_prometheus_reads_the_rules() -> None:
    assert yaml_of(DEPLOY / "prometheus.yml")["rule_files"] == [RULES_FILE.name]
    mounted = yaml_of(DEPLOY / "docker-compose.yml")["services"]["prometheus"]["volumes"]
    assert f"./{RULES_FILE.name}:/etc/prometheus/{RULES_FILE.name}:ro" in mounted


def test_there_is_a_rule_for_whatever_the_gateway_itself_tells() -> None:
    kinds = {
        "backend_down": "GatewayBackendDown",
        "backend_misconfigured": "GatewayBackendMisconfigured",
        "alias_fallback": "GatewayAliasOnFallback",
        "alias_cloud": "GatewayAliasOnCloud",
        "alias_nothing": "GatewayAliasHasNothing",
        "drift": "GatewayBackendDrift",
        "draft_acceptance": "GatewayDraftAcceptanceLow",
        "start_failed": "GatewayStartFailed",
        "budget": "GatewayBudgetSpent",
        "invalid_edit": "GatewayEditRefused",
        "internal_failure": "GatewayInternalFailure",
        "shortage": "GatewayShort",
    }
    told = set(get_args(Kind)) - {
        "backend_back",
        "alias_back",
        "draft_acceptance_back",
        "start_works",
        "engine_restarted",  # the engine hung before, which GatewayBackendDown tells
        "valid_edit",
        "shortage_over",
        "test",
    }  # good news, which resolves
    assert told == kinds.keys()
    assert {*kinds.values()} <= {rule["alert"] for rule in RULES}


def test_every_rule_says_how_bad_it_is_and_what_it_means() -> None:
    assert {rule["labels"]["severity"] for rule in RULES} == {"warning", "critical"}
    assert all(rule["annotations"]["summary"].endswith(".") for rule in RULES)


@promtool
def test_promtool_takes_the_rules_and_they_tell_what_they_should(tmp_path: Path) -> None:
    test = (ROOT / "tests/data/prometheus/rules_test.yml").read_text().replace("RULES", str(RULES_FILE))
    (tmp_path / "test.yml").write_text(test)
    key = tmp_path / "metrics-key"
    key.write_text("none")
    config = (DEPLOY / "prometheus.yml").read_text()
    here = config.replace("/etc/prometheus/metrics-key", str(key)).replace("prometheus-rules.yml", str(RULES_FILE))
    (tmp_path / "prometheus.yml").write_text(here)
    run("check", "config", str(tmp_path / "prometheus.yml"))
    run("test", "rules", str(tmp_path / "test.yml"))


@promtool
def test_promtool_takes_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{i}", "expr": re.sub(r'"\$\w+"', '".*"', expression).replace("$__rate_interval", "1m")}
        for i, (_, expression, _) in enumerate(panel_expressions())
    ]
    file = tmp_path / "rules.json"  # JSON is YAML, too
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    run("check", "rules", str(file))


def run(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
