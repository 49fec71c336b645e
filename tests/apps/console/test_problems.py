"""What is wrong, grouped by cause, for `gateway top`."""

from __future__ import annotations

from typing import Any

from gateway.apps.console.problems import ALARM, WARNING, troubles


def backend(state: str, since: float = 0.0, node: str | None = None, **more: Any) -> dict[str, Any]:
    return {"state": state, "since": since, "nodes": [node] if node else [], "reason": "/health: refused", **more}


def alias(course: str, *steps: str, by: str = "", step: int | None = None) -> dict[str, Any]:
    chain, serving = [[name] for name in steps], [by] if by else []
    return {"course": course, "steps": chain, "serving": serving, "step": step, "since": 940.0, "why": "as it is"}


def told(**status: Any) -> list[tuple[str, str]]:
    return list(troubles({"now": 1000.0, **status}, None, 0.0))


def test_aliases_of_one_cause_are_one_problem() -> None:
    lines = told(
        backends={"a": backend("down", 940.0), "b": backend("ready", 900.0)},
        aliases={
            "one": alias("fallback", "a", "b", by="b", step=2),
            "two": alias("fallback", "a", "b", by="b", step=2),
            "three": alias("nothing", "a"),
            "a": {**alias("nothing", "a"), "implicit": True},
        },
    )
    assert lines == [
        ("a is down for 1 min: NOTHING serves three; one, two are on a FALLBACK: b answers", ALARM),
        ("  What to do: gateway probe a. /health: refused", "none"),
    ]


def test_backends_of_a_node_that_fell_together_are_one_problem() -> None:
    fleet = {"a": backend("down", 940.0, "n"), "b": backend("down", 960.0, "n"), "c": backend("down", 999.0, "n")}
    aliases = {"one": alias("nothing", "a"), "two": alias("nothing", "b", "a")}
    lines = [line for line, _ in told(backends=fleet, aliases=aliases)]
    assert lines[0] == "a, b are down for 1 min: NOTHING serves one, two"
    assert lines[2] == "c is down for 1 s"
    whole = [line for line, _ in told(backends=fleet, aliases=aliases, nodes={"n": {"state": "down"}})]
    assert whole[0] == "node n is down, and with it a, b, c for 1 min: NOTHING serves one, two"
    assert whole[1].startswith("  What to do: see whether the machine runs")


def test_of_an_engine_on_a_node_the_log_is_named() -> None:
    line = told(backends={"a": backend("down", 940.0, "n", engine="vllm")}, aliases={})[1][0]
    assert line == "  What to do: gateway fleet logs a. /health: refused"
    other = told(backends={"a": backend("down", 940.0, "n", engine="ollama")}, aliases={})[1][0]
    assert "gateway probe a" in other


def test_what_mends_it_and_the_likely_cause_are_said() -> None:
    trouble = {"cause": "no memory is left", "mend": "gateway fleet restart a", "words": ["OOM"]}
    lines = told(backends={"a": backend("down", 940.0, trouble=trouble)}, aliases={})
    assert lines[1][0] == "  What to do: gateway fleet restart a. /health: refused. Likely: no memory is left"


def test_what_starts_and_takes_nobody_along_is_no_problem_and_what_is_suspect_a_small_one() -> None:
    assert told(backends={"a": backend("warming", 940.0)}, aliases={}) == []
    aliases = {"one": alias("fallback", "a", "b", by="b", step=2)}
    (line, style), _ = told(backends={"a": backend("suspect", 940.0)}, aliases=aliases)
    assert (line, style) == ("a is suspect for 1 min: one is on a FALLBACK: b answers", WARNING)


def test_an_alias_on_a_cloud_is_a_problem_of_its_own() -> None:
    aliases = {"one": alias("cloud", "a", "c", by="c", step=2)}
    lines = [line for line, _ in told(backends={"a": backend("down", 940.0)}, aliases=aliases)]
    assert lines[-1] == "one is on the CLOUD for 1 min: c answers. as it is"


def test_fields_that_are_missing_or_odd_are_left_out() -> None:
    odd = {"x": {"state": "down", "since": "soon", "nodes": 3, "trouble": [1]}}
    lines = told(backends=odd, aliases={"y": {"course": "nothing", "steps": "x", "step": "2"}})
    assert lines[0][0] == "x is down"
    assert lines[-1][0].startswith("NOTHING serves y")
