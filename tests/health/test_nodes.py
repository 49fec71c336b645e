"""When a machine is called down, and when it is not."""

from __future__ import annotations

from gateway.health.nodes import NodeHealth

BOTH = ("n1", "n2")


def nodes(**witnesses: bool) -> NodeHealth:
    """Of n2; each was there before."""
    found = NodeHealth()
    for name in witnesses:
        found.record_backend("n2", name, reachable=True)
    for name, reachable in witnesses.items():
        found.record_backend("n2", name, reachable=reachable)
    return found


def test_a_node_is_down_when_all_backends_that_live_there_alone_are_gone() -> None:
    assert nodes(a=False, b=False).is_down("n2")
    assert not nodes(a=False, b=True).is_down("n2")
    assert nodes(a=False).down_node_of("both", BOTH) == "n2"


def test_a_node_is_up_again_with_its_first_backend() -> None:
    found = nodes(a=False, b=False)
    found.record_backend("n2", "b", reachable=True)
    assert found.down_node_of("both", BOTH) is None


def test_while_its_exporter_answers_it_is_up() -> None:
    found = nodes(a=False)
    found.record_exporter("n2", reachable=True)
    assert not found.is_down("n2")
    found.record_exporter("n2", reachable=False)
    assert found.is_down("n2")


def test_an_exporter_alone_is_stopped_and_not_the_node() -> None:
    found = nodes(a=True)
    found.record_exporter("n2", reachable=False)
    assert not found.is_down("n2")


def test_where_nothing_lives_the_exporter_tells() -> None:
    found = NodeHealth()
    assert not found.is_down("n2")
    found.record_exporter("n2", reachable=True)
    found.record_exporter("n2", reachable=False)
    assert found.is_down("n2")


def test_a_backend_that_was_never_there_tells_nothing_of_its_node() -> None:
    found = NodeHealth()
    found.record_backend("n2", "a", reachable=False)
    assert found.down_node_of("both", BOTH) is None


def test_one_that_works_all_the_same_is_excused_until_the_node_has_come_back() -> None:
    found = nodes(a=False)
    found.excuse("both", BOTH)
    assert found.down_node_of("both", BOTH) is None
    assert found.down_node_of("other", BOTH) == "n2"
    found.record_backend("n2", "a", reachable=True)
    found.record_backend("n2", "a", reachable=False)
    assert found.down_node_of("both", BOTH) == "n2", "it has gone again"


def test_a_backend_that_left_the_file_is_no_witness_of_its_node() -> None:
    found = nodes(a=False, b=True, c=True)
    found.record_exporter("n2", reachable=True)
    found.keep_only({"a": "n2", "b": "n2"}, {"n2"})
    assert not found.is_down("n2")
    found.keep_only({"a": "n2", "b": "n1"}, {"n2"})
    assert not found.is_down("n2"), "its exporter answers"
    found.keep_only({"a": "n2"}, set())
    assert found.is_down("n2")
