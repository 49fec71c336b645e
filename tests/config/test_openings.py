"""An edit that takes protection away is not taken while the gateway runs, unless an admin says that it is meant."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.ports import free_ports
from gateway.config.changes import local_keys, openings
from gateway.config.snapshot import Client
from simulator import SimVllm
from tests.apps.alerts.hook import hooked
from tests.cli.test_serve import serving
from tests.editing import Editor, editor_of
from tests.raw_client import chat
from tests.support import write

OPS, INSIDE, AGENT = "ops-key-1", "inside-key-2", "agent-key-3"
KEYS = f"""
clients:
  ops:
    key: {OPS}
    admin: true
  agent:
    key: {AGENT}
  inside:
    key: {INSIDE}
    local_only: true
"""
ALIAS = "aliases: {w: [a]}\n"
CHAT = "/v1/chat/completions"
AS_OPS = {"authorization": f"Bearer {OPS}"}
OPEN = {"confirm": "open"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("gateway.runtime.reload.REREAD", 0.05)
    return tmp_path / "routes.yaml"


@asynccontextmanager
async def guarded(file: Path, more: str = "") -> AsyncIterator[Editor]:
    async with editor_of(file, "a", f"{ALIAS}{more}{KEYS}") as e:
        yield e


async def status_of(e: Editor, key: str | None) -> int:
    headers = {"x-api-key": key} if key is not None else {}
    return (await e.gateway.client.post(CHAT, json=chat("w"), headers=headers)).status_code


async def asked_to_reload(e: Editor, key: str = OPS, **body: Any) -> httpx.Response:
    return await e.gateway.client.post("/admin/reload", json=body, headers={"x-api-key": key})


def without_clients(text: str) -> dict[str, str]:
    """Ways in which a file loses its clients and stays valid, by name."""
    before = text[: text.index("clients:")]
    lost = text[text.index("clients:") :]
    return {
        "cut before the section": before,
        "cut behind its name": before + "clients:\n",
        "commented out": before + "".join(f"#{line}\n" for line in lost.splitlines()),
        "its entries commented out": before + "clients:\n" + "".join(f"#{line}\n" for line in lost.splitlines()[1:]),
        "an empty mapping": before + "clients: {}\n",
        "null": before + "clients: null\n",
        "a tilde": before + "clients: ~\n",
    }


def without_local_only(text: str) -> dict[str, str]:
    line = "    local_only: true\n"
    return {
        "the line is gone": text.replace(line, ""),
        "commented out": text.replace(line, f"#{line}"),
        "false": text.replace(line, "    local_only: false\n"),
        "under another name": text.replace("  inside:", "  renamed:").replace(line, ""),
        "under another key": text.replace(INSIDE, "another-key").replace(line, ""),
        "its key as a hash": text.replace(line, "").replace(INSIDE, f"sha256:{sha256(INSIDE.encode()).hexdigest()}"),
    }


# -- what is not taken ------------------------------------------------------------------------------------------------


async def test_an_edit_that_loses_its_clients_lets_nobody_in(file: Path) -> None:
    async with guarded(file) as e:
        text = e.text
        for how, lost in without_clients(text).items():
            result = await e.save(lost)
            assert (result.after, "clients: all of them are gone" in result.reason) == ("refused", True), how
            assert [await status_of(e, key) for key in (None, "wrong", AGENT)] == [401, 401, 200], how
            assert (await e.gateway.client.get("/status")).status_code == 401
            assert (await e.save(text)).after == "taken", how


async def test_an_edit_that_loses_local_only_is_not_taken(file: Path) -> None:
    async with guarded(file) as e:
        text = e.text
        for how, lost in without_local_only(text).items():
            result = await e.save(lost)
            assert (result.after, ".local_only: is gone" in result.reason) == ("refused", True), how
            assert e.gateway.gateway.snapshot.clients["inside"].local_only, how
            assert (await e.save(text)).after == "taken", how


async def test_local_only_is_not_lost_in_two_steps(file: Path) -> None:
    """Taken out, and put back without it: the key has not forgotten."""
    async with guarded(file) as e:
        text = e.text
        head, _, _ = text.partition("  inside:")
        assert (await e.save(head)).after == "taken"
        result = await e.save(f"{head}  other:\n    key: {INSIDE}\n")
        assert (result.after, "clients.other.local_only: is gone" in result.reason) == ("refused", True)
        assert await status_of(e, INSIDE) == 401
        assert (await e.save(text)).after == "taken"


async def test_it_is_told_as_an_invalid_edit(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with hooked() as hook, guarded(file, f"alerts: {{webhook: '{hook.url}/hook'}}\n") as e:
        text = e.text
        refused = await e.save(without_clients(text)["commented out"])
        status = (await e.gateway.client.get("/status", headers=AS_OPS)).json()
        await hook.until(lambda: ("invalid_edit", "routes.yaml") in hook.told())
        for told in (caplog.text, status["config"]["error"], refused.reason, hook.texts()[-1]):
            assert "clients: all of them are gone" in told
            assert '{"confirm": "open"}' in told
        assert status["config"]["refused_at"] > status["config"]["loaded_at"]
        assert e.gateway.metric("gateway_config_reloads_total", result="refused") == 1
        assert e.gateway.metric("gateway_config_valid") == 0
        assert (await e.save(text)).after == "taken"
        await hook.until(lambda: ("valid_edit", "routes.yaml") in hook.told())


async def test_a_file_that_is_written_in_two_parts_is_one_edit(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part is valid, and loses the clients: it is read once more before anybody is told."""
    monkeypatch.setattr("gateway.runtime.reload.REREAD", 0.4)
    async with guarded(file) as e:
        text = e.text.replace("{w: [a]}", "{v: [a]}")
        write(file, text[: text.index("clients:")])
        reloader = e.gateway.gateway.reloader
        assert reloader is not None
        await e.gateway.until(lambda: reloader._lock.locked())
        write(file, text)
        assert (await e.until(1)).after == "taken"
        assert "v" in e.gateway.gateway.snapshot.aliases


# -- what is ----------------------------------------------------------------------------------------------------------


async def test_taking_out_one_client_revokes_its_key_at_once(file: Path) -> None:
    async with guarded(file) as e:
        assert (await e.edit(f"  agent:\n    key: {AGENT}\n", "")).after == "taken"
        assert [await status_of(e, key) for key in (AGENT, OPS)] == [401, 200]
        inside = e.text[e.text.index("  inside:") :]
        assert (await e.save(e.text.replace(inside, ""))).after == "taken"
        assert [await status_of(e, key) for key in (INSIDE, OPS)] == [401, 200]


async def test_more_protection_and_other_changes_count_at_once(file: Path) -> None:
    async with guarded(file) as e:
        assert (await e.edit(f"key: {AGENT}", f"key: {AGENT}\n    local_only: true")).after == "taken"
        assert (await e.edit(f"key: {INSIDE}", "key: rotated-key")).after == "taken"
        assert [await status_of(e, key) for key in (INSIDE, "rotated-key")] == [401, 200]
        assert (await e.edit("{w: [a]}", "{v: [a]}")).after == "taken"


async def test_clients_may_come_at_any_time(file: Path) -> None:
    async with editor_of(file, "a", ALIAS) as e:
        text = e.text
        assert (await e.save(text + KEYS)).after == "taken"
        assert await status_of(e, None) == 401
        assert (await e.save(text)).after == "refused"
        assert await status_of(e, None) == 401


# -- what an admin says -----------------------------------------------------------------------------------------------


async def test_an_admin_of_the_version_in_force_may_mean_it(file: Path) -> None:
    async with guarded(file) as e:
        write(file, without_clients(e.text)["an empty mapping"])
        refused = await asked_to_reload(e)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (409, "invalid_config")
        assert '{"confirm": "open"}' in error["message"]
        assert [(await asked_to_reload(e, key, **OPEN)).status_code for key in (AGENT, "wrong")] == [403, 401]
        assert await status_of(e, None) == 401
        meant = await asked_to_reload(e, **OPEN)
        assert (meant.status_code, meant.json()["changes"]) == (
            200,
            [f"- clients.{n}" for n in ("ops", "agent", "inside")],
        )
        assert await status_of(e, None) == 200
        assert (await e.gateway.client.get("/status")).json()["config"]["error"] is None


async def test_an_admin_may_let_a_client_out(file: Path) -> None:
    async with guarded(file) as e:
        lost = without_local_only(e.text)["the line is gone"]
        write(file, lost)
        assert (await asked_to_reload(e)).status_code == 409
        assert (await asked_to_reload(e, **OPEN)).json()["changes"] == ["~ clients.inside.local_only: true -> false"]
        assert not e.gateway.gateway.snapshot.clients["inside"].local_only
        assert (await e.save(lost + "# a further edit\n")).after == "taken", "once is enough"


async def test_who_is_an_admin_is_told_by_the_version_in_force(file: Path) -> None:
    """A file that names another admin and loses `local_only` gives that one no say about itself."""
    async with guarded(file) as e:
        text = without_local_only(e.text)["the line is gone"]
        write(file, text.replace(f"key: {AGENT}", f"key: {AGENT}\n    admin: true"))
        assert (await asked_to_reload(e, AGENT, **OPEN)).status_code == 403
        assert e.gateway.gateway.snapshot.clients["inside"].local_only


@pytest.mark.parametrize(
    "body", ["[]", "open", '"open"', '{"confirm": true}', '{"confirm": "yes"}', "{", '{"confirm": 1}']
)
async def test_nothing_else_counts_as_meaning_it(file: Path, body: str) -> None:
    async with guarded(file) as e:
        write(file, without_clients(e.text)["null"])
        headers = {**AS_OPS, "content-type": "application/json"}
        answer = await e.gateway.client.post("/admin/reload", content=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request_body")
        assert await status_of(e, None) == 401


async def test_meaning_it_does_not_make_a_file_with_mistakes_valid(file: Path) -> None:
    async with guarded(file) as e:
        write(file, without_clients(e.text)["null"] + "backendz: {}\n")
        assert (await asked_to_reload(e, **OPEN)).status_code == 409
        write(file, without_clients(e.text)["null"].replace("backendz: {}\n", ""))
        assert await status_of(e, None) == 401


async def test_without_an_opening_the_word_changes_nothing(file: Path) -> None:
    async with guarded(file) as e:
        for body in ({}, OPEN, {"confirm": None}):
            assert (await asked_to_reload(e, **body)).json()["changes"] == []


# -- as a process -----------------------------------------------------------------------------------------------------


async def test_sighup_opens_nothing_and_a_restart_does(file: Path) -> None:
    sim = SimVllm("chat")
    port = free_ports(1)
    async with (
        sim.serve() as backend,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        text = f"backends: {{chat: {{url: '{backend}'}}}}\n"
        write(file, text + KEYS)
        async with serving(file, port) as gateway:
            write(file, text)
            await gateway.until_said("clients: all of them are gone")
            gateway.said = ""
            gateway.process.send_signal(signal.SIGHUP)
            await gateway.until_said("clients: all of them are gone")
            assert (await client.get("/status")).status_code == 401
            assert "all of them are gone" in (await client.get("/status", headers=AS_OPS)).json()["config"]["error"]
        async with serving(file, port):
            assert (await client.get("/status")).status_code == 200


# -- the rule ---------------------------------------------------------------------------------------------------------

client = st.builds(lambda key, local: (key, local), st.sampled_from("abcd"), st.booleans())
files = st.dictionaries(st.sampled_from(["one", "two", "three"]), client, max_size=3).filter(
    lambda made: len({key for key, _ in made.values()}) == len(made)  # each needs its own: others are not loaded
)


def clients_of(made: dict[str, tuple[str, bool]]) -> dict[str, Client]:
    return {name: Client(name, key_sha256=key, local_only=local) for name, (key, local) in made.items()}


@given(files, st.lists(files, max_size=4))
def test_no_row_of_live_edits_opens_the_gateway_or_lets_a_key_out(first: Any, edits: list[Any]) -> None:
    """Names and keys may change in any way: what was once closed stays so."""
    running = clients_of(first)
    ever_local = kept = local_keys(running)
    had_clients = bool(running)
    for edit in map(clients_of, edits):
        if openings(running, edit, kept, "routes.yaml"):
            continue
        running = edit
        kept |= local_keys(edit)
        ever_local |= local_keys(edit)
        had_clients = had_clients or bool(edit)
        assert bool(running) == had_clients
        assert not [c for c in running.values() if c.key_sha256 in ever_local and not c.local_only]


@given(files)
def test_the_same_clients_and_fewer_are_no_opening(made: Any) -> None:
    before = clients_of(made)
    kept = local_keys(before)
    assert not openings(before, before, kept, "routes.yaml")
    for name in list(before)[1:]:
        assert not openings(before, {n: c for n, c in before.items() if n != name}, kept, "routes.yaml")
