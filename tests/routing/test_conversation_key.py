"""What makes a conversation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.endpoints import COMPLETIONS
from gateway.routing.conversation_key import affinity_key
from tests.routing.parts import request
from tests.routing.test_balance import names, unhurried

TALK = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]


def key_of(session: bytes | None = None, client: str = "c", alias: str = "a", **body: Any) -> bytes:
    body.setdefault("messages", TALK)
    return affinity_key(request(**body), session, client, alias)


def test_an_id_is_the_session_whatever_is_said() -> None:
    one = key_of(b"s1")
    assert one == key_of(b"s1", messages=[{"role": "user", "content": "something else"}]) == key_of(b"s1", alias="b")
    assert one != key_of(b"s2")


def test_an_id_is_the_session_of_its_client_alone() -> None:
    assert len({key_of(b"s1"), key_of(b"s1", client="d"), key_of(b"s1", client="")}) == 3


def test_an_id_is_compared_whole() -> None:
    assert key_of(b"x" * 9000 + b"1") != key_of(b"x" * 9000 + b"2")


def test_else_the_beginning_of_the_conversation_is_the_session() -> None:
    first = key_of()
    later = [*TALK, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "and then?"}]
    assert key_of(messages=later) == first
    assert key_of(temperature=0.3, stream=True, tools=[]) == first
    assert key_of(messages=[TALK[0], {"role": "user", "content": "bye"}]) != first
    assert key_of(messages=[{"role": "system", "content": "be rude"}, TALK[1]]) != first


LONG = [{"role": "assistant", "content": 'she said "user"} and [left]'}, {"role": "user", "content": "and then?"}] * 40


@pytest.mark.parametrize(
    "first",
    [
        {"role": "user", "content": 'hello "user"}]'},
        {"content": 'hello {"role":"user"}', "role": "user"},
        {"role": "user", "content": [{"type": "text", "text": "hello}"}, {"type": "text", "text": "{"}]},
        {"role": "user", "content": "hello", "name": "user", "more": [[{}, {"role": "user"}], {"a": {"b": {"c": {}}}}]},
    ],
    ids=["role first", "role last", "parts", "deep"],
)
@pytest.mark.parametrize("before", [[], [TALK[0]], [{"role": "system", "content": 'you talk to a "user"'}]])
def test_a_session_stays_itself_however_long_it_grows(before: list[Any], first: dict[str, Any]) -> None:
    begun = [*before, first]
    key = key_of(messages=begun)
    assert [key_of(messages=begun + LONG[:n]) for n in (1, 2, 30, 80)] == [key] * 4
    assert key_of(messages=[*before, {**first, "content": "bye"}, *LONG]) != key


def test_two_callers_and_two_aliases_are_two_sessions() -> None:
    assert len({key_of(), key_of(client="d"), key_of(alias="b")}) == 3


def test_only_the_first_bytes_of_a_long_beginning_count() -> None:
    start = "x" * 9000
    assert key_of(messages=[{"role": "user", "content": start + "a"}]) == key_of(
        messages=[{"role": "user", "content": start + "b"}]
    )


@unhurried
@given(
    st.one_of(st.none(), st.text(), st.integers(), st.lists(st.one_of(st.integers(), st.dictionaries(names, names))))
)
def test_messages_of_any_shape_make_a_key(messages: Any) -> None:
    assert key_of(messages=messages) == key_of(messages=messages)


def test_a_plain_prompt_makes_a_key() -> None:
    def key(prompt: Any) -> bytes:
        return affinity_key(request(COMPLETIONS, prompt=prompt), None, "c", "a")

    assert key("one") == key("one") != key("two")
    assert key(["one", "two"]) == key(["one", "two"])
