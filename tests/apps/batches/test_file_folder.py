"""The folder of the files: one gateway's at a time, and nothing of anybody else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.apps.batches.file_folder import FileFolder
from gateway.apps.batches.sqlite_store import SqliteBatchStore
from gateway.apps.batches.store import StoreAway, StoreFailed
from tests.apps.batches.test_sqlite_store import begun
from tests.support import running_gateway

FORM = {"content-type": "multipart/form-data; boundary=b"}
BODY = (
    b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="x"\r\n\r\n{}\r\n--b--\r\n'
)


@pytest.mark.parametrize("used_before", [False, True])
def test_a_folder_of_somebody_else_is_named_and_left_as_it_is(tmp_path: Path, used_before: bool) -> None:
    thesis = tmp_path / "files" / "my-thesis.pdf"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    if used_before:
        (tmp_path / "batches.db").touch()
    store = SqliteBatchStore(tmp_path)
    with pytest.raises(StoreFailed, match=r"files is not the gateway's own \('my-thesis.pdf' is in it\): move it away"):
        store.open()
    assert thesis.read_text() == "years of work"
    thesis.unlink()
    store.open()
    store.close()


async def test_a_client_is_told_that_the_folder_is_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "my-thesis.pdf").write_text("years of work")
    routes = f"server: {{data: '{tmp_path}'}}\nbackends: {{a: {{url: 'http://127.0.0.1:9'}}}}"
    async with running_gateway(routes) as gateway:
        for _ in range(2):
            refused = await gateway.client.post("/v1/files", content=BODY, headers=FORM)
            assert refused.status_code == 503
            assert "my-thesis.pdf" in refused.json()["error"]["message"]
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["my-thesis.pdf"]


def test_only_names_that_a_gateway_gives_are_deleted(tmp_path: Path) -> None:
    store = SqliteBatchStore(tmp_path)
    store.open()
    store.close()
    strays = [f"file-{'a' * 24}", f"file-output-{'b' * 24}", f"file-error-{'c' * 24}.part"]
    others = ["notes.txt", "file-of-mine.jsonl", f"file-{'A' * 24}"]
    for name in strays + others:
        (tmp_path / "files" / name).touch()
    (tmp_path / "files" / "sub").mkdir()
    store.open()
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == sorted([*others, "sub"])
    store.close()


def test_the_folder_of_an_older_gateway_is_gone_on_with(tmp_path: Path) -> None:
    store = SqliteBatchStore(tmp_path)
    store.open()
    begun(store, 1)
    (tmp_path / "files" / "file-in").rename(tmp_path / "files" / f"file-{'a' * 24}")
    store._db.execute("UPDATE files SET id = ?", (f"file-{'a' * 24}",))
    store.close()
    (tmp_path / "batches.lock").unlink()
    store.open()
    assert len(store.files("open")) == 1
    assert store.read_file(f"file-{'a' * 24}", 0, 10)
    store.close()


def test_one_gateway_at_a_time_has_the_folder(tmp_path: Path) -> None:
    first, second = SqliteBatchStore(tmp_path), SqliteBatchStore(tmp_path)
    first.open()
    first.new_file(name := f"file-{'a' * 24}").write(b"on its way")
    with pytest.raises(StoreAway, match=r"Another gateway uses .*files: it leaves it when it is stopped"):
        second.open()
    assert (tmp_path / "files" / name).exists()
    first.close()
    second.open()
    second.close()


def test_a_store_that_cannot_be_opened_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "batches.db").write_bytes(b"no database, but long enough to be taken for one. " * 100)
    with pytest.raises(Exception, match="not a database"):
        SqliteBatchStore(tmp_path).open()
    folder = FileFolder(tmp_path / "files")
    folder.take(used_before=True)
    folder.leave()
