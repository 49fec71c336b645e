"""Files and batches while one gateway takes over from another."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest

from simulator import SimVllm
from tests.apps.batches.filed import ended, line, results
from tests.apps.batches.test_batches import ROUTES, asked, begin, sdk
from tests.gateway_process import gateway_process
from tests.waiting import until, until_said

HEAD = b'--b\r\ncontent-disposition: form-data; name="file"; filename="x"\r\n\r\n'
END = b'\r\n--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n'


async def test_no_line_is_asked_twice_and_no_upload_is_lost(tmp_path: Path) -> None:
    """The old gateway has the store until it stops and what is sent to it has come; then the new one goes on."""
    sim = SimVllm("a", served=["m"], decode=200.0)
    names = [f"r{n}" for n in range(60)]
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    async with sim.serve() as url:
        routes = ROUTES.format(data=f"{tmp_path}/state, shutdown: 20s", url=url, slots=2)
        async with (
            gateway_process(tmp_path / "old", routes) as old,
            sdk(old.url) as at_old,
            httpx.AsyncClient(base_url=old.url) as sending,
        ):
            batch = await begin(at_old, [line(name, f"{name}: 3 words please") for name in names])
            await until(lambda: len(asked(sim)) > 10)
            files = tmp_path / "state" / "files"
            async with gateway_process(tmp_path / "new", routes) as new, sdk(new.url) as at_new:
                with pytest.raises(openai.InternalServerError, match="Another gateway uses") as refused:
                    await at_new.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
                assert (refused.value.status_code, refused.value.response.headers["retry-after"]) == (503, "5")

                async def pieces() -> AsyncIterator[bytes]:
                    yield HEAD + b"first" * 20_000
                    await until(lambda: any(path.stat().st_size for path in files.iterdir() if path.name not in known))
                    os.kill(old.pid, signal.SIGTERM)
                    yield b" and last" + END

                known = {path.name for path in files.iterdir()}
                kind = {"content-type": "multipart/form-data; boundary=b"}
                sent = await sending.post("/v1/files", content=pieces(), headers=kind)
                assert sent.status_code == 200
                await until_said(lambda: answers(at_new, batch.id), within=30)
                done = await ended(at_new, batch.id)
                assert list((await results(at_new, done))[0]) == names
                assert (await at_new.files.content(sent.json()["id"])).text == "first" * 20_000 + " and last"
    twice = [name for name, count in Counter(asked(sim)).items() if count > 1]
    assert len(twice) <= 3  # those that were under way when the old one stopped, and one whose answer had just come


async def answers(client: openai.AsyncOpenAI, name: str) -> bool:
    """Has the gateway the store?"""
    try:
        return bool(await client.batches.retrieve(name))
    except openai.InternalServerError:
        return False
