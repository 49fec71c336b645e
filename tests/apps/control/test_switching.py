"""The steps of a switch: what leaves, what comes, in which order, and why it is refused."""

from __future__ import annotations

from dataclasses import replace

from gateway.apps.control.memory.plan import plan
from gateway.apps.control.switching import Presence, Steps, load_order, start_steps, stop_steps, switch_steps
from gateway.config.load import load_text
from gateway.config.snapshot import Snapshot

ROUTES = """\
nodes:
  spark1: {address: 192.168.1.11, memory: 119.67GiB, ssh: ops@spark1}
  spark2: {address: 192.168.1.12, memory: 119.67GiB, ssh: ops@spark2}
  mac: {address: 192.168.1.13}
backends:
  small:
    node: spark1
    launch: {command: vllm serve Qwen/Qwen3-8B --port 8001 --gpu-memory-utilization 0.2, resident: 20GiB}
  big:
    node: spark1
    launch: {command: vllm serve Qwen/Qwen3-32B --port 8002 --gpu-memory-utilization 0.5, resident: 55GiB}
  both:
    node: [spark1, spark2]
    launch:
      command: vllm serve deepseek-ai/DeepSeek-V4-Flash --port 8003 -tp 2 --gpu-memory-utilization 0.8
      resident: 90GiB
    profiles: {latency: {max-num-seqs: 2}}
  huge:
    node: spark2
    launch: {command: vllm serve Qwen/Qwen3-8B --port 8004 --gpu-memory-utilization 0.5, resident: 200GiB}
  hand: {node: mac, url: "http://192.168.1.13:8005", model: m}
  own:
    url: http://192.168.1.14:8006
    start: sh -c 'echo ${A} && docker start own'
    stop: docker stop own
modes:
  daily: [small, big]
  long: {backends: [both], profiles: {both: latency}}
  plain: [both]
  much: [small, huge]
  odd: [hand, own]
"""


def snapshot() -> Snapshot:
    return load_text(ROUTES, "routes.yaml", {}).snapshot


def switch(target: str, current: str | None = None, **presence: Presence) -> Steps:
    routes = snapshot()
    return switch_steps(routes, target, current, presence, plan(routes, target))


def said(steps: Steps) -> list[str]:
    return [f"{step.what} {step.backend}{': ' + step.skip if step.skip else ''}" for step in steps.steps]


def test_everything_that_leaves_is_drained_before_the_first_stop() -> None:
    found = switch("plain", "daily", small="up", big="up")
    assert said(found) == [
        "preflight both", "drain small", "drain big", "stop small", "stop big",
        "preflight both", "start both", "wait both", "resume both",
    ]  # fmt: skip
    assert found.refusals == found.notes == []


def test_the_biggest_of_a_node_comes_first() -> None:
    found = switch("daily", "plain", both="up")
    assert [step.backend for step in found.steps if step.what == "start"] == ["big", "small"]


def test_an_engine_over_two_nodes_waits_for_the_bigger_ones_of_both() -> None:
    routes = snapshot()
    assert load_order(["small", "both", "big", "own"], plan(routes, "daily"))[-1] == "own"
    assert load_order(["small", "big"], "no plan") == ["small", "big"]


def test_what_is_up_stays_and_what_is_drained_serves_again() -> None:
    assert said(switch("daily", "daily", small="up", big="drained")) == ["resume big", "wait big"]
    assert said(switch("daily", "daily", small="up", big="up")) == []


def test_what_is_left_of_another_mode_leaves_and_what_is_in_none_stays() -> None:
    assert said(switch("daily", "daily", small="up", big="up", both="up")) == ["drain both", "stop both"]


def test_a_backend_of_the_mode_in_force_is_stopped_even_if_it_is_not_seen() -> None:
    assert "stop both" in said(switch("daily", "plain")), "it may be loading"


def test_another_profile_is_a_restart() -> None:
    found = switch("long", "plain", both="up")
    assert said(found)[:3] == ["preflight both", "drain both", "stop both"]
    (start,) = [step for step in found.steps if step.what == "start"]
    assert start.profile == "latency"
    assert [command.shown for command in start.commands] == [
        "ssh ops@spark2: profile latency", "ssh ops@spark1: profile latency",
        "ssh ops@spark2 sudo systemctl start spark-both", "ssh ops@spark1 sudo systemctl start spark-both",
    ]  # fmt: skip
    (start,) = [step for step in switch("plain", "long", both="up").steps if step.what == "start"]
    assert (start.profile, start.commands[0].shown) == ("", "ssh ops@spark2: no profile")
    assert said(switch("long", "long", both="up")) == []


def test_how_it_was_started_counts_more_than_the_mode_in_force() -> None:
    routes = snapshot()

    def steps(target: str, started: dict[str, str]) -> list[str]:
        return said(switch_steps(routes, target, "long", {"both": "up"}, plan(routes, target), started))

    restart = ["preflight both", "drain both", "stop both", "preflight both", "start both", "wait both", "resume both"]
    assert steps("long", {"both": ""}) == restart, "the switch to long failed before it was stopped"
    assert steps("long", {"both": "latency"}) == []
    assert steps("plain", {"both": ""}) == []


def test_a_start_with_another_profile_stops_it_first() -> None:
    routes = snapshot()
    there: dict[str, Presence] = {"both": "up"}
    memory = plan(routes, "plain")
    assert said(start_steps(routes, "both", there, memory, "latency", ""))[:3] == [
        "drain both", "stop both", "preflight both"
    ]  # fmt: skip
    assert said(start_steps(routes, "both", there, memory, "latency", "latency")) == ["resume both", "wait both"]
    (start,) = [step for step in start_steps(routes, "both", {}, memory, "latency").steps if step.what == "start"]
    assert start.profile == "latency"


def test_a_start_command_of_the_operators_has_to_see_to_profiles() -> None:
    routes = load_text(ROUTES, "routes.yaml", {}).snapshot
    both = replace(routes.backends["both"], start="./start both")
    routes = replace(routes, backends={**routes.backends, "both": both})
    found = switch_steps(routes, "long", None, {}, plan(routes, "long"))
    assert found.notes == [
        "both is to run with profile latency, and its `start` is a command of your own: it has to see to that",
    ]


def test_what_runs_serves_while_the_others_load() -> None:
    found = said(switch("daily", "plain", big="drained", both="up"))
    assert found == [
        "preflight small", "drain both", "stop both", "resume big",
        "preflight small", "start small", "wait small", "resume small", "wait big",
    ]  # fmt: skip


def test_a_mode_that_does_not_fit_is_refused() -> None:
    (refusal,) = switch("much", "daily", small="up", big="up").refusals
    assert refusal.startswith("spark2: ")


def test_what_cannot_be_started_or_stopped_is_refused() -> None:
    (refusal,) = switch("odd", "daily", small="up", big="up").refusals
    assert refusal.startswith("hand cannot be started: write `start` under backends.hand")
    found = switch("daily", "odd", hand="up", own="up", small="up", big="up")
    assert found.refusals[0].startswith("hand cannot be stopped")
    away = switch("daily", "odd", own="up", small="up", big="up")
    assert away.refusals == [], "it does not run"
    assert "stop hand: no `stop` command" in said(away)


def test_a_preflight_needs_ssh() -> None:
    found = said(switch("odd"))
    assert "preflight hand: node mac has no `ssh`" in found
    assert "preflight own: has no `node`" in found


def test_one_backend() -> None:
    routes = snapshot()
    assert said(stop_steps(routes, "big", {"big": "up"})) == ["drain big", "stop big"]
    assert stop_steps(routes, "hand", {}).refusals != []
    assert said(start_steps(routes, "big", {}, plan(routes, "daily")))[:2] == ["preflight big", "start big"]
    assert said(start_steps(routes, "big", {"big": "up"}, plan(routes, "daily"))) == ["resume big", "wait big"]
