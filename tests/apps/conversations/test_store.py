"""Kept responses on disk: what is found again, and what gives way."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import shortage
from gateway.apps.conversations import store as kept
from gateway.apps.conversations.store import ResponseStore, Turn

MOST = 10_000  # bytes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ResponseStore]:
    store = ResponseStore(tmp_path / "data", keep=100.0, most=MOST)
    store.open()
    yield store
    store.close()


def turn(text: str, size: int = 0) -> Turn:
    return Turn(b'["%b"]' % text.encode(), b'{"output":["%b"]}' % text.encode() + b" " * size)


def add(store: ResponseStore, name: str, previous: str | None = None, *, owner: str = "a", at: float = 0.0) -> bool:
    return store.add(owner, name, previous, turn(name), at, local=False)


def names(store: ResponseStore, name: str, owner: str = "a", at: float = 0.0) -> list[bytes] | None:
    found = store.conversation(owner, name, at, MOST)
    return None if found is None else [one.input for one in found.turns]


def test_a_conversation_is_found_from_its_beginning(store: ResponseStore) -> None:
    assert add(store, "r1")
    assert add(store, "r2", "r1")
    assert add(store, "other", "r1")
    assert add(store, "r3", "r2")
    assert names(store, "r3") == [b'["r1"]', b'["r2"]', b'["r3"]']
    assert names(store, "other") == [b'["r1"]', b'["other"]']


def test_ids_of_another_owner_are_unknown_even_if_they_are_the_same(store: ResponseStore) -> None:
    add(store, "r1")
    assert names(store, "r1", owner="b") is None
    assert not add(store, "r2", "r1", owner="b")
    assert not store.drop("b", "r1")
    add(store, "r1", owner="b")
    assert store.drop("b", "r1")
    assert names(store, "r1") == [b'["r1"]']


def test_an_item_leads_to_the_response_that_has_it_as_long_as_that_is_kept(store: ResponseStore) -> None:
    said = Turn(b"[]", b'{"output":[{"id":"rs_1"},{"id":7},{}]}')
    assert store.add("a", "r1", None, said, 0.0, local=False)
    assert store.response_with("a", "rs_1") == "r1"
    assert store.response_with("b", "rs_1") is None
    assert store.response_with("a", "7") is None
    store.drop("a", "r1")
    assert store.response_with("a", "rs_1") is None


def test_a_conversation_ages_from_its_last_use(store: ResponseStore) -> None:
    add(store, "r1", at=0)
    add(store, "r2", "r1", at=90)
    assert names(store, "r2", at=180) is not None
    assert names(store, "r1", at=270) is not None
    assert store.response("a", "r1", 360) is not None
    assert names(store, "r1", at=400) is None
    store.drop_old(400)
    assert store.response("a", "r1", 0) is None


def test_what_went_on_from_a_deleted_response_cannot_be_continued(store: ResponseStore) -> None:
    add(store, "r1")
    add(store, "r2", "r1")
    assert store.drop("a", "r1")
    assert names(store, "r2") is None
    assert store.response("a", "r2", 0) is not None
    add(store, "r1")  # the same id again is another response
    assert names(store, "r2") == [b'["r1"]', b'["r2"]']


def test_the_oldest_conversations_of_an_owner_give_way(store: ResponseStore) -> None:
    add(store, "old", at=1)
    add(store, "older", at=0)
    add(store, "theirs", owner="b", at=0)
    assert store.add("a", "new", None, turn("new", MOST // 4 - 40), 2, local=False)
    assert names(store, "older", at=3) is None
    assert names(store, "old", at=3) is None
    assert names(store, "new", at=3) == [b'["new"]']
    assert names(store, "theirs", owner="b", at=3) is not None


def test_one_that_is_too_large_alone_is_not_kept_and_takes_nothing_away(store: ResponseStore) -> None:
    add(store, "r1")
    add(store, "other")
    assert not store.add("a", "r2", "r1", turn("r2", MOST // 4), 1, local=False)
    assert store.response("a", "r2", 1) is None
    assert names(store, "r1") is not None
    assert names(store, "other") is not None


def test_all_owners_together_are_bounded(store: ResponseStore) -> None:
    for number in range(6):
        assert store.add(f"o{number}", "r", None, turn("r", MOST // 4 - 100), number, local=False)
    found = [number for number in range(6) if names(store, "r", owner=f"o{number}", at=6) is not None]
    assert found == [2, 3, 4, 5]


def test_responses_and_depth_are_counted(store: ResponseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "RESPONSES_MOST", 2)
    for number in range(3):
        assert add(store, f"r{number}", at=number)
    assert names(store, "r0") is None
    monkeypatch.setattr(kept, "RESPONSES_MOST", 100)
    monkeypatch.setattr(kept, "DEPTH_MOST", 2)
    assert add(store, "second", "r2")
    assert not add(store, "third", "second")


def test_a_conversation_larger_than_a_request_may_be_is_not_read(store: ResponseStore) -> None:
    add(store, "r1")
    with pytest.raises(OverflowError):
        store.conversation("a", "r1", 0, 10)


def test_only_the_owner_of_the_process_may_read_the_file(store: ResponseStore, tmp_path: Path) -> None:
    add(store, "r1")
    for path in (tmp_path / "data").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_kept_outlives_the_process(store: ResponseStore, tmp_path: Path) -> None:
    store.add("a", "r1", None, turn("r1"), 0, local=True)
    store.close()
    again = ResponseStore(tmp_path / "data", keep=100.0, most=MOST)
    again.open()
    found = again.conversation("a", "r1", 1, MOST)
    assert found is not None
    assert found.local
    again.close()


def test_a_response_that_would_fill_the_disk_is_not_kept(store: ResponseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shortage, "FREE_LEAST", 10**18)
        with pytest.raises(shortage.OwnShortage):
            add(store, "r1")
    assert names(store, "r1") is None
    assert add(store, "r1")
