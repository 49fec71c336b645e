"""routes.yaml is edited while a request to several backends waits for one of them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.editing import Editor
from tests.queueing import CHAT, Gate
from tests.raw_client import chat
from tests.scripted import raw_post
from tests.support import running_gateway


@pytest.mark.parametrize("alias", ["{ask_all: [b]}", "[b]", "{ask_all: [b, c]}"])
async def test_no_other_model_speaks_for_a_backend_that_was_taken_out(tmp_path: Path, alias: str) -> None:
    gates = {name: Gate() for name in "abc"}
    async with AsyncExitStack() as stack:
        for gate in gates.values():
            gate.backend.scripts = (gate.hold,)
            await stack.enter_async_context(gate.backend.serve())
        lines = {name: f"  {name}: {{url: '{gate.backend.url}', slots: 1}}\n" for name, gate in gates.items()}
        routes = f"backends:\n{''.join(lines.values())}aliases: {{judges: {{ask_all: [a, b]}}}}\n"
        file = tmp_path / "routes.yaml"
        gateway = await stack.enter_async_context(running_gateway(routes, file=file))
        await gateway.until_ready(*gates)
        edits = Editor(gateway, file)
        state = gateway.gateway.fleet["a"]
        state.foreign, state.inflight = 1, 1  # taken by somebody else
        asked = asyncio.create_task(raw_post(gateway.url, chat("judges", "r0"), CHAT))
        await gateway.until(lambda: "r0" in gates["b"].inside and bool(gateway.gateway.admission.scheduler.waiters))
        gates["b"].open()
        gates["c"].open()
        await edits.until_in_force(routes.replace(lines["a"], "").replace("{ask_all: [a, b]}", alias))
        state.inflight = 0
        reply = await asked
        assert [choice["finish_reason"] for choice in reply.json["choices"]] == ["error", "stop"]
        rows = reply.json["x_gateway"]["choices"]
        assert [row["backend"] for row in rows] == ["a", "b"]
        assert rows[0]["error"]["code"] == "no_backend_available"
        assert (len(gates["b"].order), len(gates["c"].order)) == (1, 0)
