"""Where the prefixes of conversations are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.request import InferenceRequest
from gateway.routing import placements as module
from gateway.routing.placements import BOUNDS, Placements, Session
from tests.routing.parts import request

SYSTEM = {"role": "system", "content": "system " * 1000}


def turns(*said: str) -> list[dict[str, Any]]:
    return [SYSTEM, *({"role": "user", "content": text * 500} for text in said)]


def asked(*said: str, **body: Any) -> InferenceRequest:
    return request(messages=turns(*said), **body)


def size(asked: InferenceRequest) -> int:
    return len(bytes(asked.fields["messages"])) + len(bytes(asked.fields.get("tools", b"")))


def placed(*steps: tuple[InferenceRequest, bytes, str], client: str = "c") -> Placements:
    found = Placements()
    for one, key, backend in steps:
        found.put(found.find(one, key, client), backend)
    return found


def test_a_conversation_is_known_whole_where_it_was() -> None:
    first = asked("one ")
    known = placed((first, b"k", "a")).find(asked("one ", "two "), b"k", "c")
    assert known.home == "a"
    assert known.cached == {"a": size(first)}
    assert known.size == size(asked("one ", "two "))


def test_where_it_was_last_is_its_home() -> None:
    known = placed((asked("one "), b"k", "a"), (asked("one ", "two "), b"k", "b"))
    session = known.find(asked("one ", "two ", "three "), b"k", "c")
    assert session.home == "b"
    assert session.cached["b"] == size(asked("one ", "two ")) > session.cached["a"]


def test_a_branch_without_an_id_finds_the_history() -> None:
    history = [f"turn {n} " for n in range(12)]
    known = placed((asked("else "), b"other", "b"), (asked(*history), b"k", "a"))
    branch = known.find(asked(*history[:11], "another way "), b"new", "c")
    assert branch.home is None
    assert branch.cached["a"] > 0.75 * branch.size > branch.cached["b"]


def test_a_new_session_finds_the_common_beginning_alone() -> None:
    one = asked("one ")
    known = placed((one, b"k", "a")).find(asked("other "), b"l", "c")
    assert known.home is None
    assert 2048 <= known.cached["a"] < size(one) - 1000


def test_after_a_compaction_it_stays_where_the_system_prompt_is() -> None:
    known = placed((asked("one ", "two ", "three "), b"k", "a"))
    compacted = known.find(asked("summary "), b"k", "c")
    assert compacted.home == "a"
    assert 2048 <= compacted.cached["a"] < size(asked())


def test_an_agent_with_the_id_of_another_goes_where_its_own_history_is() -> None:
    """Sub-agents may send the id of their parent."""
    parent, sub = asked("parent "), asked(*[f"sub {n} " for n in range(6)])
    known = placed((sub, b"k", "b"), (parent, b"k", "a"))
    assert known.find(asked(*[f"sub {n} " for n in range(6)], "next "), b"k", "c").home == "b"
    assert known.find(asked("parent ", "next "), b"k", "c").home == "a"


def test_other_tools_are_another_prefix() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    known = placed((asked("one ", tools=tools), b"k", "a"))
    assert known.find(asked("one ", "two ", tools=tools), b"k", "c").cached["a"] > 2048
    assert known.find(asked("one ", "two "), b"k", "c").cached == {}


def test_clients_know_nothing_of_each_other() -> None:
    known = placed((asked("one "), b"k", "a")).find(asked("one ", "two "), b"k", "d")
    assert (known.home, known.cached) == (None, {})


def test_the_cache_of_a_backend_is_forgotten_with_it() -> None:
    known = placed((asked("one "), b"k", "a"), (asked("two "), b"l", "b"))
    known.forget("a")
    session = known.find(asked("one ", "two "), b"k", "c")
    assert session.home is None
    assert "a" not in session.cached
    assert known.find(asked("two "), b"l", "c").home == "b"
    known.forget("b")
    assert len(known) == 0


def test_the_table_is_bounded_and_forgets_the_client_with_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_MOST", 300)
    monkeypatch.setattr(module, "FORGOTTEN", 50)
    known = placed((asked("quiet "), b"k", "a"), client="quiet")
    for number in range(500):
        known.put(known.find(asked(f"{number} "), b"%d" % number, "loud"), "a")
        assert len(known) <= 300
    assert known.find(asked("quiet "), b"k", "quiet").home == "a"
    assert known.find(asked("499 "), b"499", "loud").home == "a"


def test_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIENTS_MOST", 10)
    known = Placements()
    for number in range(50):
        known.put(known.find(asked("one "), b"k", f"client {number}"), "a")
    assert len(known) <= 10 * 40
    assert known.find(asked("one "), b"k", "client 49").home == "a"
    assert known.find(asked("one "), b"k", "client 0").home is None


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=5), st.integers(0, 3), st.sampled_from("ab")), max_size=12)
)
def test_no_more_is_known_than_was_computed_there(steps: list[tuple[list[int], int, str]]) -> None:
    """Of each backend: at most the longest common beginning with a prompt that it had, but for the bytes of one step
    between two bounds."""
    known = Placements()
    had: list[tuple[bytes, str]] = []
    for said, key, backend in steps:
        one = asked(*[f"{number} " for number in said])
        session = known.find(one, b"%d" % key, "c")
        text = bytes(one.fields["messages"])
        assert all(0 <= count <= session.size for count in session.cached.values())
        for name, count in session.cached.items():
            common = max(_common(text, other) for other, where in had if where == name)
            assert count <= common * 1.25 + BOUNDS[0]
        known.put(session, backend)
        had.append((text, backend))


def _common(one: bytes, other: bytes) -> int:
    least = min(len(one), len(other))
    return next((at for at in range(least) if one[at] != other[at]), least)


@given(st.one_of(st.none(), st.text(max_size=5000), st.lists(st.integers())))
def test_a_prompt_of_any_shape_has_a_place(messages: Any) -> None:
    known = Placements()
    one = InferenceRequest(request().endpoint, {"messages": msgspec.Raw(msgspec.json.encode(messages))}, "m")
    known.put(known.find(one, b"k", "c"), "a")
    assert known.find(one, b"k", "c").home == "a"
    assert isinstance(known.find(one, b"l", "c"), Session)
