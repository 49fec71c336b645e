"""What a new batch may say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.apps.batches.filed import CHAT, filed, jsonl, line

WRONG = [
    {"endpoint": "/v1/nothing", "completion_window": "24h", "input_file_id": "FILE"},
    {"endpoint": CHAT, "completion_window": "1h", "input_file_id": "FILE"},
    {"endpoint": CHAT, "completion_window": "24h"},
    {"endpoint": CHAT, "input_file_id": "FILE", "metadata": {"x": "y" * 600}},
    {"endpoint": CHAT, "input_file_id": 5},
    {"endpoint": CHAT, "input_file_id": "FILE", "output_expires_after": {"anchor": "created_at"}},
    {"endpoint": CHAT, "input_file_id": "FILE", "output_expires_after": {"anchor": "created_at", "seconds": True}},
    {"endpoint": CHAT, "input_file_id": "FILE", "output_expires_after": {"anchor": "created_at", "seconds": 60}},
    {"endpoint": CHAT, "input_file_id": "FILE", "output_expires_after": {"anchor": "last_used", "seconds": 7200}},
    {"endpoint": CHAT, "input_file_id": "FILE", "output_expires_after": 7200},
]


@pytest.mark.parametrize("body", WRONG)
async def test_a_batch_that_cannot_be_is_refused(body: dict[str, Any]) -> None:
    async with filed() as f:
        file = await f.client.files.create(file=("l.jsonl", b"x"), purpose="batch")
        answer = await f.gateway.client.post("/v1/batches", json=json.loads(json.dumps(body).replace("FILE", file.id)))
        assert answer.status_code == 400


async def test_the_files_that_a_batch_writes_expire_when_it_says_so() -> None:
    async with filed() as f:
        expiry = {"anchor": "created_at", "seconds": 7200}
        done = await f.ended(await f.begin(jsonl([line("r")]), extra_body={"output_expires_after": expiry}))
        output = await f.client.files.retrieve(str(done.output_file_id))
        assert output.expires_at == output.created_at + 7200
        usual = await f.ended(await f.begin(jsonl([line("r")])))
        output = await f.client.files.retrieve(str(usual.output_file_id))
        assert output.expires_at == output.created_at + 30 * 86400
