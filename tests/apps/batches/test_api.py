"""OpenAI's files API, for the files of batches."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from tests.apps.batches.filed import Filed, filed, jsonl, line


def folder_of(f: Filed) -> Path:
    """Where the contents of the files are."""
    return Path(f.gateway.gateway.snapshot.server.data) / "files"


async def test_files_are_listed_read_and_deleted() -> None:
    async with filed() as f:
        made = [await f.client.files.create(file=(f"{n}.jsonl", b"x" * n), purpose="batch") for n in range(1, 6)]
        assert [one.id async for one in f.client.files.list(limit=2)] == [one.id for one in reversed(made)]
        assert (await f.client.files.content(made[2].id)).content == b"xxx"
        assert (made[2].bytes, made[2].filename) == (3, "3.jsonl")
        assert (await f.client.files.delete(made[2].id)).deleted
        with pytest.raises(openai.NotFoundError):
            await f.client.files.content(made[2].id)
        assert not (folder_of(f) / made[2].id).exists()


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
@pytest.mark.parametrize("limit", ["²", "٣", "0", "-1", "x", ""])
async def test_a_limit_that_is_no_number_is_a_clear_error(path: str, limit: str) -> None:
    async with filed() as f:
        answer = await f.gateway.client.get(path, params={"limit": limit})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")


@pytest.mark.parametrize("charset", ["unicode_escape''%5Cud800", "utf-7''%2B2AA-"])
async def test_a_filename_in_any_charset_is_kept_as_text(charset: str) -> None:
    body = (
        '--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
        f'content-disposition: form-data; name="file"; filename*={charset}\r\n\r\n{{}}\r\n--b--\r\n'
    )
    async with filed() as f:
        kind = {"content-type": "multipart/form-data; boundary=b"}
        made = await f.gateway.client.post("/v1/files", content=body, headers=kind)
        assert (made.status_code, made.json()["filename"]) == (200, "?")
        assert [one.filename async for one in f.client.files.list()] == ["?"]


async def test_a_file_may_be_larger_than_a_request_but_not_than_its_own_limit() -> None:
    top = "server: {max_body: 64KiB, max_file: 1MiB}"
    async with filed(top=top) as f:
        large = await f.client.files.create(file=("l.jsonl", b"x" * 900_000), purpose="batch")
        assert large.bytes == 900_000
        with pytest.raises(openai.APIStatusError) as refused:
            await f.client.files.create(file=("l.jsonl", b"x" * 1_100_000), purpose="batch")
        assert refused.value.status_code == 413
        folder = folder_of(f)
        await f.gateway.until(lambda: len(list(folder.iterdir())) == 1)
        too_long = jsonl([line("big", "x" * 100_000), line("small")])
        output, errors = await f.results(await f.ended(await f.begin(too_long)))
        assert list(output) == ["small"]
        assert [row["error"]["code"] for row in errors.values()] == ["line_too_large"]


BODIES = {
    "no form": ("application/json", b"{}", "file"),
    "no boundary": ("multipart/form-data", b"", "boundary"),
    "cut off": (
        'multipart/form-data; boundary="b"',
        b'--b\r\ncontent-disposition: form-data; name="file"',
        "ends before",
    ),
    "an expiry that is no number": (
        "multipart/form-data; boundary=b",
        b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--b\r\ncontent-disposition: form-data; name="expires_after[anchor]"\r\n\r\ncreated_at\r\n'
        b'--b\r\ncontent-disposition: form-data; name="expires_after[seconds]"\r\n\r\n\xc2\xb2\r\n'
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="x"\r\n\r\n{}\r\n--b--\r\n',
        "expires_after",
    ),
    "no file": (
        "multipart/form-data; boundary=b",
        b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n',
        "no `file`",
    ),
}


@pytest.mark.parametrize("name", BODIES)
async def test_an_upload_that_is_none_is_a_clear_error(name: str) -> None:
    kind, body, says = BODIES[name]
    async with filed() as f:
        answer = await f.gateway.client.post("/v1/files", content=body, headers={"content-type": kind})
        assert answer.status_code == 400
        assert says in answer.json()["error"]["message"]
        assert list(folder_of(f).iterdir()) == []


async def test_a_file_that_a_batch_reads_is_not_deleted() -> None:
    async with filed(slots=1) as f:
        f.sim.fault("hang_before")
        batch = await f.begin(jsonl([line("r")]))
        await f.gateway.until(lambda: f.gateway.gateway.fleet["a"].inflight == 1)
        with pytest.raises(openai.BadRequestError):
            await f.client.files.delete(batch.input_file_id)
        await f.client.batches.cancel(batch.id)
        await f.ended(batch)
