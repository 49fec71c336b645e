"""What an edit of routes.yaml does to backends that work and to requests that wait: nothing is lost, nothing is closed
too early, and what has not changed goes on as it was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from tests.editing import Editor, edited, editor_of
from tests.queueing import Queue, opened
from tests.raw_client import chat, raw_client
from tests.support import running_gateway

CHAT = "/v1/chat/completions"
PAIR = "aliases: {w: [a, b]}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "routes.yaml"


async def ask(e: Editor, model: str = "w", key: str = "") -> httpx.Response:
    headers = {"x-api-key": key} if key else {}
    return await e.gateway.client.post(CHAT, json=chat(model), headers=headers)


def state_of(e: Editor, name: str) -> BackendState:
    return e.gateway.gateway.fleet[name]


def without(text: str, backend: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(f"  {backend}: "))


# -- requests that wait -----------------------------------------------------------------------------------------------


@dataclass
class Waiting(Queue):
    editor: Editor = None  # type: ignore[assignment]  # set where it is made: the base class has defaults

    async def edit(self, old: str, new: str) -> None:
        await self.save(self.editor.text.replace(old, new))

    async def save(self, text: str) -> None:
        assert (await self.editor.save(text)).after == "taken", self.editor.results

    def without(self, backend: str) -> str:
        """The file, but for this backend's line."""
        return without(self.editor.text, backend)


@asynccontextmanager
async def waiting(file: Path, slots: str, aliases: str, more: str = "") -> AsyncIterator[Waiting]:
    """As `tests.queueing.queue`, from a file. A gate whose slots are 0 is not in the file."""
    async with AsyncExitStack() as stack:
        gates, lines = await opened(stack, slots)
        there = [line for line in lines.values() if not line.endswith("slots: 0}")]
        routes = "\n".join(["backends:", *there, f"aliases: {{{aliases}}}", more])
        running = await stack.enter_async_context(running_gateway(routes, file=file))
        await running.until_ready(*(name for name in running.gateway.fleet.states if name != "cloud"))
        found = Waiting(running, gates, editor=await stack.enter_async_context(edited(running, file)))
        try:
            yield found
        finally:
            await found.finish()


async def test_what_waits_for_a_backend_that_is_taken_out_goes_to_its_next_candidate(file: Path) -> None:
    async with waiting(file, "a: 1, b: 1", "pool: [a, b]") as q:
        await q.ask("r0", "r1", "r2")
        assert (q.gates["a"].order, q.depth()) == (["r0"], 2.0)
        await q.save(q.without("a").replace("[a, b]", "[b]"))
        await q.until_inside("r1", "b")
        q.gates["b"].end("r1")
        await q.until_inside("r2", "b")
        q.gates["b"].end("r2")
        q.gates["a"].end("r0")
        replies = [await q.reply(name) for name in ("r0", "r1", "r2")]
        assert [(r.status, r.headers["x-gateway-backend"]) for r in replies] == [(200, "a"), (200, "b"), (200, "b")]


async def test_what_waits_goes_to_the_new_place_of_a_backend_that_has_moved(file: Path) -> None:
    async with waiting(file, "a: 1, moved: 0, again: 0", "pool: [a]") as q:
        await q.ask("r0", "r1", "r2")
        for before, after, name in (("a", "moved", "r1"), ("moved", "again", "r2")):
            await q.edit(q.gates[before].backend.url, q.gates[after].backend.url)
            await q.until_inside(name, after)
            assert q.gateway.gateway.fleet["a"].inflight == 1, "counted apart from what still runs in the old place"
        for gate in q.gates.values():
            gate.end(*gate.inside)
        assert [(await q.reply(name)).status for name in ("r0", "r1", "r2")] == [200, 200, 200]


async def test_what_waits_follows_its_alias_when_all_of_its_backends_were_renamed(file: Path) -> None:
    async with waiting(file, "a: 1, other: 0", "pool: [a]") as q:
        await q.ask("r0", "r1")
        text = q.editor.text.replace(q.gates["a"].backend.url, q.gates["other"].backend.url)
        await q.save(text.replace("  a:", "  c:").replace("[a]", "[c]"))
        await q.until_inside("r1", "other")
        for gate in q.gates.values():
            gate.end(*gate.inside)
        assert [(await q.reply(name)).headers["x-gateway-backend"] for name in ("r0", "r1")] == ["a", "c"]


async def test_what_waits_enters_no_cloud_because_its_backend_was_taken_out(file: Path) -> None:
    async with waiting(file, "a: 1, cloud: 1, b: 1", "pool: {use: [a, cloud], cloud_when: [too_long]}, x: [b]") as q:
        await q.ask("r0", "r1")
        await q.save(q.without("a").replace("use: [a, cloud]", "use: [b, cloud]"))
        refused = await q.reply("r1")
        assert (refused.status, refused.json["error"]["code"]) == (503, "no_backend_available")
        assert "a is draining (taken out of routes.yaml)" in refused.json["error"]["message"]
        assert q.gates["cloud"].order == []


async def test_fewer_slots_count_from_the_next_grant_on_and_more_at_once(file: Path) -> None:
    async with waiting(file, "a: 3", "pool: [a]") as q:
        await q.ask(*(f"r{n}" for n in range(6)))
        assert len(q.gate.inside) == 3
        await q.edit("slots: 3", "slots: 1")
        q.gate.end("r0", "r1")
        await q.reply("r1")
        await q.gateway.until(lambda: q.gateway.gateway.fleet["a"].inflight == 1)
        assert (list(q.gate.inside), q.depth()) == (["r2"], 3.0)
        q.gate.end("r2")
        await q.until_inside("r3")
        assert (list(q.gate.inside), q.depth()) == (["r3"], 2.0)
        await q.edit("slots: 1", "slots: 4")
        await q.until_inside("r5")
        assert sorted(q.gate.inside) == ["r3", "r4", "r5"]


# -- streams on what is taken out -------------------------------------------------------------------------------------


async def test_a_backend_that_is_taken_out_is_closed_when_its_streams_have_ended(file: Path) -> None:
    async with editor_of(file, "a b", PAIR) as e:
        e.sims["a"].fault("hang_mid", after=3, count=1)
        async with raw_client(e.gateway.url) as client:
            await client.post(CHAT, chat("w", "20 words", stream=True))
            await client.until(b"data: ")
            gone, fleet = state_of(e, "a"), e.gateway.gateway.fleet
            await e.save(without(e.text, "a").replace("[a, b]", "[b]"))
            assert list(fleet.states) == ["b"]
            assert (gone.inflight, list(fleet.retired.values())) == (1, [gone])
            assert (await ask(e)).headers["x-gateway-backend"] == "b"
            assert 'backend="a"' in (await e.gateway.client.get("/metrics")).text, "it still runs there"
            e.sims["a"].clear()
            assert b"data: [DONE]" in await client.until(b"0\r\n\r\n")
        await e.gateway.until(lambda: not fleet.retired)
        assert gone.inflight == 0
        assert 'backend="a"' not in (await e.gateway.client.get("/metrics")).text
        assert id(gone) not in e.gateway.gateway.admission.scheduler._queues


async def test_a_backend_that_is_put_back_while_streams_run_there_has_them_counted(file: Path) -> None:
    async with editor_of(file, "a b", PAIR) as e:
        e.sims["a"].fault("hang_mid", after=3, count=1)
        async with raw_client(e.gateway.url) as client:
            await client.post(CHAT, chat("w", "20 words", stream=True))
            await client.until(b"data: ")
            text, before = e.text, state_of(e, "a")
            await e.save(without(text, "a").replace("[a, b]", "[b]"))
            await e.save(text)
            assert state_of(e, "a") is before
            assert (before.inflight, e.gateway.gateway.fleet.retired) == (1, {})
            await e.gateway.until_ready("a")
            assert (await ask(e)).headers["x-gateway-backend"] == "a"
            e.sims["a"].clear()
            assert b"data: [DONE]" in await client.until(b"0\r\n\r\n")


# -- what has not changed ---------------------------------------------------------------------------------------------


async def test_a_backend_that_means_the_same_keeps_what_it_has(file: Path) -> None:
    async with editor_of(file, "a b", PAIR) as e:
        await ask(e)
        state = state_of(e, "a")
        state.facts.learn_lack("images", 1e9)
        client, since, learned = state.client, state.health.since, state.facts.lacks
        probes = e.sims["a"].seen["/health"]
        await e.save(e.text.replace("slots: 4", "slots: 3, timeouts: {connect: 1s}", 1).replace("w:", "writer:"))
        assert state_of(e, "a") is state
        assert (state.client, state.health.since, state.facts.lacks, state.slots) == (client, since, learned, 3)
        assert client is not None
        assert client.connect_timeout == 1.0
        assert state.health.state is State.READY
        await e.gateway.until(lambda: e.sims["a"].seen["/health"] > probes)  # looked at anew, at once


async def test_another_model_is_known_for_nothing_and_found_out_about_at_once(file: Path) -> None:
    async with editor_of(file, "a", "aliases: {w: [a]}\n", head="defaults: {health: {every: 1h}}\n") as e:
        e.sims["a"].served = ["one", "two"]
        state = state_of(e, "a")
        state.facts.learn_lack("images", 1e9)
        await e.edit("slots: 4", "slots: 4, model: two")
        assert not state.facts.lacks
        await e.gateway.until(lambda: state.reported.model == "two")
        await e.edit("model: two", "model: three")
        await e.gateway.until(lambda: state.health.state is State.MISCONFIGURED)
        await e.edit("model: three", "model: one")
        await e.gateway.until(lambda: state.health.state is not State.MISCONFIGURED)
        assert (await ask(e)).status_code == 200


async def test_a_drain_survives_an_edit(file: Path) -> None:
    async with editor_of(file, "a b", PAIR) as e:
        await e.gateway.client.post("/admin/backends/a/drain")
        await e.edit("slots: 4", "slots: 3")
        assert e.gateway.state("a") is State.DRAINING
        assert (await ask(e)).headers["x-gateway-backend"] == "b"


async def test_a_backend_that_is_new_is_known_before_the_first_request(file: Path) -> None:
    async with editor_of(file, "a +b", "aliases: {w: [a]}\n", head="defaults: {health: {every: 1h}}\n") as e:
        e.sims["b"].served = ["some/model"]
        url = e.sims["b"].url
        text = e.text.replace("backends:\n", f"backends:\n  b: {{url: '{url}'}}\n").replace("[a]", "[b]")
        assert (await e.save(text)).reason == "+ backends.b; ~ aliases.w.use: [[a]] -> [[b]]"
        state = state_of(e, "b")
        assert (state.health.state, state.model) == (State.READY, "some/model")
        assert (await ask(e)).headers["x-gateway-backend"] == "b"


async def test_a_backend_that_is_new_and_not_there_does_not_hold_up_the_edit(file: Path) -> None:
    async with editor_of(file, "a", "aliases: {w: [a]}\n") as e:
        text = e.text.replace("backends:\n", "backends:\n  b: {url: 'http://127.0.0.1:9'}\n").replace("[a]", "[b, a]")
        assert (await e.save(text)).after == "taken"
        assert e.gateway.state("b") is State.WARMING
        assert (await ask(e)).headers["x-gateway-backend"] == "a"


async def test_what_is_not_in_the_file_any_more_is_shown_nowhere(file: Path) -> None:
    async with editor_of(file, "a b", "aliases: {w: [a], v: [b]}\n") as e:
        assert [(await ask(e, name)).status_code for name in ("w", "v")] == [200, 200]
        await e.save(without(e.text, "a").replace("w: [a], ", ""))
        await e.gateway.until(lambda: not e.gateway.gateway.fleet.retired)
        metrics = (await e.gateway.client.get("/metrics")).text
        assert 'backend="b"' in metrics
        assert 'backend="a"' not in metrics
        assert 'alias="v"' in metrics
        assert 'alias="w"' not in metrics
        told = (await e.gateway.client.get("/status")).json()
        assert (list(told["backends"]), list(told["aliases"])) == (["b"], ["v", "b"])
        assert (await ask(e, "w")).json()["error"]["code"] == "model_not_found"
        drained = await e.gateway.client.post("/admin/backends/a/drain")
        assert drained.status_code == 404


# -- clients ----------------------------------------------------------------------------------------------------------


async def test_edits_of_clients_count_for_the_next_request(file: Path) -> None:
    clients = "clients: {one: {key: first-key}, two: {key: other-key}}\n"
    async with editor_of(file, "a", f"aliases: {{w: [a]}}\n{clients}") as e:
        assert (await ask(e, key="first-key")).status_code == 200
        await e.edit("first-key", "second-key")
        assert [(await ask(e, key=key)).status_code for key in ("first-key", "second-key")] == [401, 200]
        await e.edit("second-key", "second-key, rpm: 2")
        assert [(await ask(e, key="second-key")).status_code for _ in range(3)] == [200, 200, 429]
        await e.edit("rpm: 2", "rpm: 3")
        assert [(await ask(e, key="second-key")).status_code for _ in range(2)] == [200, 429], "the minute goes on"
        await e.edit("rpm: 3", "aliases: [v]")
        assert (await ask(e, key="second-key")).status_code == 403
        await e.edit("one: {key: second-key, aliases: [v]}, ", "")
        assert [(await ask(e, key=key)).status_code for key in ("second-key", "other-key")] == [401, 200]
        assert 'client="one"' not in (await e.gateway.client.get("/metrics", headers={})).text
