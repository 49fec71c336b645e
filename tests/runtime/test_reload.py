"""routes.yaml is edited while the gateway runs: what is valid counts at once, what is not is shown and changes
nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.ports import free_ports
from simulator import SimVllm
from tests.apps.alerts.hook import hooked
from tests.cli.test_serve import serving
from tests.demo_process import running_demo
from tests.editing import Editor, editor_of
from tests.raw_client import chat, raw_client
from tests.support import read, running_gateway, write
from tests.waiting import pace

CHAT = "/v1/chat/completions"
ALIAS = "aliases: {w: [a]}\n"
BOTH = "aliases: {w: [a, b]}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "routes.yaml"


async def models(e: Editor, **headers: str) -> set[str]:
    return {card["id"] for card in (await e.gateway.client.get("/v1/models", headers=headers)).json()["data"]}


async def status(e: Editor) -> Any:
    return (await e.gateway.client.get("/status")).json()


# -- a valid edit -----------------------------------------------------------------------------------------------------


async def test_a_valid_edit_counts_at_once_and_no_stream_is_dropped(file: Path) -> None:
    async with editor_of(file, "a", ALIAS) as e:
        e.sims["a"].fault("hang_mid", after=3, count=1)
        async with raw_client(e.gateway.url) as client:
            await client.post(CHAT, chat("w", "20 words", stream=True))
            await client.until(b"data: ")
            edited = await e.edit("{w: [a]}", "{writer: [a]}")
            assert (edited.after, edited.reason) == ("taken", "- aliases.w; + aliases.writer")
            assert await models(e) == {"writer", "a"}
            e.sims["a"].clear()
            rest = await client.until(b"0\r\n\r\n")
        assert b"data: [DONE]" in rest
        assert b"error" not in rest
        assert e.gateway.metric("gateway_config_reloads_total", result="taken") == 1


async def test_an_edit_is_live_within_a_second(file: Path) -> None:
    async with editor_of(file, "a +b", ALIAS) as e:
        text = e.text
        added = text.replace("backends:\n", f"backends:\n  b: {{url: '{e.sims['b'].url}'}}\n")
        times = [await e.timed(text) for text in (added, text, added, text)]
    assert min(times) < 1.0, "debounced, read, the new backend looked at, and in force (the best: machines may be busy)"


async def test_what_has_not_changed_is_told_to_have_not(file: Path) -> None:
    async with editor_of(file, "a", ALIAS) as e:
        edited = await e.save(e.text + "# a comment\n")
        assert (edited.after, edited.reason) == ("taken", "nothing has changed")
        assert e.gateway.metric("gateway_config_reloads_total", result="unchanged") == 1


async def test_an_edit_before_the_watch_began_is_not_missed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.runtime.gateway import Gateway

    opening = Gateway.open

    async def edited_first(gateway: Gateway) -> None:
        write(file, read(file).replace("{w: [a]}", "{writer: [a]}"))
        await opening(gateway)

    monkeypatch.setattr(Gateway, "open", edited_first)
    async with editor_of(file, "a", ALIAS) as e:
        await e.gateway.until(lambda: "writer" in e.gateway.gateway.snapshot.aliases)


# -- the ways in which editors save -----------------------------------------------------------------------------------


# Each is told where to write what, and yields the seconds that it lets pass.
Save = Callable[[Path, str], Iterator[float]]


def renamed_over(file: Path, text: str) -> Iterator[float]:
    write(file.with_suffix(".new"), text)
    file.with_suffix(".new").rename(file)
    yield 0


def with_a_backup(file: Path, text: str) -> Iterator[float]:
    """As vim: the file becomes the backup, another one takes its name."""
    file.rename(file.with_name("routes.yaml~"))
    write(file, text)
    yield 0


def in_two_writes(file: Path, text: str) -> Iterator[float]:
    with file.open("w") as stream:
        stream.write(text[: len(text) // 2])
        stream.flush()
        yield 0.2  # longer than the debounce
        stream.write(text[len(text) // 2 :])


def deleted_and_made_anew(file: Path, text: str) -> Iterator[float]:
    file.unlink()
    yield 0.2
    write(file, text)


def directory_and_all(file: Path, text: str) -> Iterator[float]:
    file.rename(file.parent.parent / "old.yaml")
    file.parent.rmdir()
    file.parent.mkdir()
    write(file, text)
    yield 0


SAVES: list[Save] = [renamed_over, with_a_backup, in_two_writes, deleted_and_made_anew, directory_and_all]


@pytest.mark.parametrize("save", SAVES, ids=lambda save: save.__name__)
async def test_every_way_of_saving_is_one_edit_and_no_mistake(tmp_path: Path, save: Save) -> None:
    (tmp_path / "conf").mkdir()
    file = tmp_path / "conf" / "routes.yaml"
    async with editor_of(file, "a", ALIAS) as e:
        text = e.text
        for number, name in enumerate(("w1", "w2"), 1):  # twice: what is watched must be the new file as well
            for pause in save(file, text.replace("{w: [a]}", f"{{{name}: [a]}}")):
                await pace(pause)
            await e.until(number)
            assert await models(e) == {name, "a"}
        assert [result.after for result in e.results] == ["taken", "taken"]


async def test_a_link_that_is_swapped_is_an_edit(tmp_path: Path) -> None:
    """As Kubernetes updates a mounted config map."""
    (tmp_path / "..1").mkdir()
    (tmp_path / "..data").symlink_to("..1")
    file = tmp_path / "routes.yaml"
    file.symlink_to("..data/routes.yaml")
    async with editor_of(file, "a", ALIAS) as e:
        text = e.text
        for number in (2, 3):
            (tmp_path / f"..{number}").mkdir()
            write(tmp_path / f"..{number}" / "routes.yaml", text.replace("{w: [a]}", f"{{w{number}: [a]}}"))
            (tmp_path / "..tmp").symlink_to(f"..{number}")
            (tmp_path / "..tmp").rename(tmp_path / "..data")
            edited = await e.until(number - 1)
            assert (edited.after, await models(e)) == ("taken", {f"w{number}", "a"})


# -- what the file is made of -----------------------------------------------------------------------------------------


async def test_edits_of_the_env_file_and_of_secrets_count_too(tmp_path: Path) -> None:
    file, env, secret = (tmp_path / name for name in ("routes.yaml", ".env", "secret"))
    write(env, "KEY=key-number-1\n")
    write(secret, "hook-number-1\n")
    more = f"{ALIAS}clients: {{one: {{key: '${{KEY}}'}}, two: {{key: '${{file:secret}}'}}}}"

    async with editor_of(file, "a", more) as e:

        async def lets_in(key: str) -> bool:
            answer = await e.gateway.client.post(CHAT, json=chat("w"), headers={"x-api-key": key})
            return answer.status_code == 200

        write(env, "KEY=key-number-2\n")
        assert (await e.until(1)).reason == "~ clients.one.key"
        assert [await lets_in(key) for key in ("key-number-1", "key-number-2")] == [False, True]
        write(secret, "hook-number-2\n")
        assert (await e.until(2)).reason == "~ clients.two.key"
        assert [await lets_in(key) for key in ("hook-number-1", "hook-number-2")] == [False, True]
        secret.unlink()
        assert (await e.until(3)).after == "refused"
        assert await lets_in("hook-number-2"), "what was before stays in force"
        write(secret, "hook-number-3\n")
        assert (await e.until(4)).after == "taken"
        assert await lets_in("hook-number-3")


async def test_traces_are_switched_on_and_off_by_an_edit(file: Path) -> None:
    async with editor_of(file, "a", ALIAS) as e:
        traces = "traces: {endpoint: 'http://127.0.0.1:9/v1/traces'}\n"
        assert (await e.save(traces + e.text)).reason == "+ traces"
        assert e.gateway.gateway.apps.tracing.tracing is not None
        assert (await e.gateway.client.post(CHAT, json=chat("w"))).status_code == 200
        assert (await e.edit(traces, "")).reason == "- traces"
        assert e.gateway.gateway.apps.tracing.tracing is None


async def test_keys_of_server_wait_for_a_restart_and_say_so(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with editor_of(file, "a", ALIAS) as e:
        caplog.set_level(logging.INFO, "gateway.config")
        server = "server: {max_body: 1KiB, listen: '127.0.0.1:4999'}\n"
        edited = await e.save(server + e.text)
        waits = "~ server.listen (waits for a restart); ~ server.max_body (waits for a restart)"
        assert (edited.after, edited.reason) == ("taken", waits)
        assert (await status(e))["config"]["restart"] == ["server.listen", "server.max_body"]
        assert "restart the gateway for server.listen, server.max_body" in caplog.text
        big = await e.gateway.client.post(CHAT, json=chat("w", "x" * 2000))
        assert big.status_code == 200, "the old limit counts"
        half = await e.edit(", listen: '127.0.0.1:4999'", "")
        assert half.reason == "~ server.listen (as the gateway runs)", "max_body was not edited and still waits"
        assert (await status(e))["config"]["restart"] == ["server.max_body"]
        back = await e.edit("server: {max_body: 1KiB}\n", "")
        assert back.reason == "~ server.max_body (as the gateway runs)"
        assert (await status(e))["config"]["restart"] == []


# -- an invalid edit --------------------------------------------------------------------------------------------------

TWO_MISTAKES = "  c: {url: 'http://127.0.0.1:9', slotz: 3}\n  d: {url: 'ftp://x'}\n"


async def test_an_invalid_edit_changes_nothing_and_is_shown_everywhere(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.config")
    async with hooked() as hook, editor_of(file, "a", f"{ALIAS}alerts: {{webhook: '{hook.url}/hook'}}\n") as e:
        before = await models(e)
        text = e.text
        result = await e.save(text.replace("aliases:", f"{TWO_MISTAKES}aliases:"))
        assert result.after == "refused"
        assert await models(e) == before
        assert (await e.gateway.client.post(CHAT, json=chat("w"))).status_code == 200
        config = (await status(e))["config"]
        line = len(text.split("aliases:")[0].splitlines()) + 1
        told = [caplog.text, config["error"], result.reason]
        await hook.until(lambda: ("invalid_edit", "routes.yaml") in hook.told())
        told.append(hook.texts()[-1])
        for words in told:
            assert f"routes.yaml:{line}  backends.c.slotz: unknown key 'slotz'" in words
            assert f"routes.yaml:{line + 1}  backends.d.url: 'ftp://x' has an unknown scheme" in words
        assert config["refused_at"] > config["loaded_at"]
        assert (await status(e))["events"][-1]["result"] == "refused"
        assert e.gateway.metric("gateway_config_reloads_total", result="refused") == 1
        assert (await e.save(text)).after == "taken"
        assert (await status(e))["config"]["error"] is None
        await hook.until(lambda: ("valid_edit", "routes.yaml") in hook.told())


async def test_no_broken_file_is_taken(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.runtime.reload.REREAD", 0.01)
    async with editor_of(file, "a", ALIAS) as e:
        text = e.text
        for broken in ("", "backends: [", "backends: {}", "\x00", "- a list", "aliases: {w: [nobody]}"):
            assert (await e.save(broken)).after == "refused", broken
        assert (await e.gateway.client.post(CHAT, json=chat("w"))).status_code == 200
        assert (await e.save(text)).after == "taken"


async def test_a_secret_is_never_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OUTSIDE", "hush-environ-0")
    write(tmp_path / ".env", "KEY=hush-key-11111\nTEMPERATURE=hush-number-2\n")
    write(tmp_path / "token", "hush-token-3333")
    more = (
        "aliases: {w: {use: [a], params: {user: 'hush-param-4'}}}\n"
        "clients: {one: {key: 'hush-key-5', admin: true}, two: {key: '${KEY}'}}\n"
        "alerts: {telegram: {token: '${file:token}', chat: '1'}, webhook: 'http://127.0.0.1:9/hush-path-6'}\n"
    )
    key = {"x-api-key": "hush-key-5"}
    async with editor_of(tmp_path / "routes.yaml", "a", more) as e:
        text = e.text
        edits = [
            text.replace("slots: 4", "api_key: '${OUTSIDE}'"),
            text.replace("hush-param-4", "hush-param-8").replace("hush-path-6", "hush-path-9"),
            text.replace("slots: 4", "slots: '${TEMPERATURE}'"),
            text.replace("w: {use: [a],", "w: {use: ['${KEY}'],"),
            text.replace("hush-key-5'", "hush-key-5', rpm: '${OUTSIDE}'"),
            text.replace("{one:", "{one: {key: 'sha256:${KEY}'}, one:"),
        ]
        shown = []
        for edit in edits:
            await e.save(edit)
            shown.append((await e.gateway.client.post("/admin/reload", headers=key)).text)
            shown.append((await e.gateway.client.get("/status", headers=key)).text)
            write(tmp_path / ".env", "KEY=hush-key-00000\nTEMPERATURE=hush-number-0\n")
        shown += [(await e.gateway.client.get("/metrics", headers=key)).text, caplog.text, *map(str, e.results)]
    assert {result.after for result in e.results} == {"taken", "refused"}
    assert [line for text in shown for line in text.splitlines() if "hush" in line] == []


# -- asked for --------------------------------------------------------------------------------------------------------


async def test_sighup_has_the_file_read(tmp_path: Path) -> None:
    sim = SimVllm("chat")
    async with sim.serve() as url:
        routes = tmp_path / "routes.yaml"
        write(routes, f"defaults: {{health: {{canary: none}}}}\nbackends: {{chat: {{url: '{url}'}}}}\n")
        async with serving(routes, free_ports(1)) as gateway:
            gateway.process.send_signal(signal.SIGHUP)
            await gateway.until_said("routes.yaml was read and is in force: nothing has changed")
            write(routes, read(routes) + "aliases: {w: [chat]}\n")
            await gateway.until_said("routes.yaml was read and is in force: + aliases.w")
            write(routes, "backends: [")
            await gateway.until_said("routes.yaml is not valid, what was before stays in force:")
            gateway.process.send_signal(signal.SIGHUP)
            await gateway.until_said("routes.yaml is not valid, what was before stays in force:")
            assert gateway.process.returncode is None
            gateway.process.terminate()
            assert await asyncio.wait_for(gateway.ended(), 20) == 0
            assert "Traceback" not in gateway.said


async def test_the_reload_path_answers_with_what_changed_or_what_is_wrong(file: Path) -> None:
    async with editor_of(file, "a", ALIAS) as e:
        reload = e.gateway.client.post
        assert e.gateway.gateway.reloader is not None
        await e.gateway.gateway.reloader.close()  # nobody watches now
        taken = await reload("/admin/reload")
        assert taken.status_code == 200
        assert taken.json() | {"warnings": []} == {"path": str(file), "changes": [], "restart": [], "warnings": []}
        write(file, e.text.replace("slots: 4", "slots: 2").replace("{w: [a]}", "{w: [a], v: [a]}"))
        changed = (await reload("/admin/reload")).json()
        assert changed["changes"] == ["~ backends.a.slots: 4 -> 2", "+ aliases.v"]
        write(file, e.text.replace("aliases:", f"{TWO_MISTAKES}aliases:"))
        refused = await reload("/admin/reload")
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (409, "invalid_config")
        assert "unknown key 'slotz'" in error["message"]
        assert "'ftp://x' has an unknown scheme" in error["message"]


async def test_a_gateway_that_goes_by_no_file_has_nothing_to_reload() -> None:
    async with running_gateway("backends: {a: {url: 'http://127.0.0.1:9'}}") as gateway:
        assert (await gateway.client.post("/admin/reload")).status_code == 404
        assert (await gateway.client.get("/status")).json()["config"] is None


async def test_only_an_admin_may_reload(file: Path) -> None:
    keys = "clients: {ops: {key: ops-key-1, admin: true}, agent: {key: agent-key-2}}"
    async with editor_of(file, "a", f"{ALIAS}{keys}") as e:
        found = []
        for key in ("nobody", "agent-key-2", "ops-key-1"):
            answer = await e.gateway.client.post("/admin/reload", headers={"authorization": f"Bearer {key}"})
            found.append(answer.status_code)
        assert found == [401, 403, 200]
        headers = {"authorization": "Bearer ops-key-1", "origin": "http://elsewhere.example"}
        assert (await e.gateway.client.post("/admin/reload", headers=headers)).status_code == 403


async def test_the_events_are_told_as_they_happen(file: Path) -> None:
    async with editor_of(file, "a", ALIAS) as e, raw_client(e.gateway.url) as client:
        await client.get("/events")
        await client.until(b"events from now on\n\n")
        await e.edit("slots: 4", "slots: 3")
        await client.until(b"event: config\n")
        told = json.loads((await client.until(b"\n")).removeprefix(b"data: "))
        assert {key: told[key] for key in ("kind", "result", "reason")} == {
            "kind": "config", "result": "taken", "reason": "~ backends.a.slots: 4 -> 3"
        }  # fmt: skip


# -- the demo ---------------------------------------------------------------------------------------------------------


def test_the_demo_follows_its_file_and_simulates_what_is_new(tmp_path: Path) -> None:
    routes = tmp_path / "routes.yaml"
    write(routes, "backends: {one: {url: 'http://192.168.1.11:8001', model: m1}}\n")
    with running_demo(tmp_path, "--config", str(routes), "--speedup", "20") as demo:
        write(routes, read(routes) + "aliases: {w: [two, one]}\n")
        refused = httpx.post(f"{demo.url}/admin/reload", timeout=30, trust_env=False)
        assert refused.status_code == 409
        two = "two: {url: 'http://192.168.1.12:8001', model: m2}"
        write(routes, read(routes).replace("model: m1}", f"model: m1}}, {two}"))
        httpx.post(f"{demo.url}/admin/reload", timeout=30, trust_env=False).raise_for_status()
        answer = httpx.post(f"{demo.url}{CHAT}", json=chat("w", "What is 12*17?"), timeout=30, trust_env=False)
        assert answer.headers["x-gateway-backend"] == "two"
        demo.steer("two", "kill")
        answer = httpx.post(f"{demo.url}{CHAT}", json=chat("w", "What is 12*17?"), timeout=30, trust_env=False)
        assert answer.headers["x-gateway-backend"] == "one"
    assert not os.path.exists(tmp_path / "state")
