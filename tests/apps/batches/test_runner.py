"""What a line is asked with: routes.yaml as it is when its turn has come."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from pathlib import Path

import openai
import pytest

from simulator import SimVllm
from tests.apps.batches.filed import Filed, jsonl, line
from tests.editing import edited
from tests.support import running_gateway
from tests.waiting import until

ROUTES = """\
server: {{data: '{data}'}}
backends: {{a: {{url: "{a}", slots: 1}}, b: {{url: "{b}", slots: 1}}}}
aliases: {{chat: [b]}}
"""


async def test_a_line_that_waited_is_asked_as_the_edited_file_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone, stays = SimVllm("b", served=["m"]), SimVllm("a", served=["m"])
    file = tmp_path / "routes.yaml"
    async with AsyncExitStack() as stack:
        urls = {sim.name: await stack.enter_async_context(sim.serve()) for sim in (gone, stays)}
        routes = ROUTES.format(data=tmp_path / "state", **urls)
        gateway = await stack.enter_async_context(running_gateway(routes, file=file))
        editor = await stack.enter_async_context(edited(gateway, file))
        await gateway.until_ready("a", "b")
        client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        f = Filed(gone, gateway, await stack.enter_async_context(client))
        gone.fault("hang_before")
        batch = await f.begin(jsonl([line(f"r{n}", f"r{n}") for n in range(6)]))
        await until(lambda: f.asked() == ["r0"])
        head = routes.splitlines()[0]
        await editor.save(f"{head}\nbackends: {{a: {{url: '{urls['a']}'}}}}\naliases: {{chat: [a]}}\n")
        gone.clear()
        done = await f.ended(batch)
        output, errors = await f.results(done)
        assert (sorted(output), errors) == ([f"r{n}" for n in range(6)], {})
        assert f.asked() == ["r0"]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
