"""`gateway alerts test`: does what is configured arrive, and what is said when it does not."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import cli
from tests.apps.alerts.hook import Hook, hooked, refusal

BACKENDS = "backends: {a: {url: 'http://10.0.0.1:8001'}}\n"


@contextmanager
def served(*answers: bytes) -> Iterator[Hook]:
    """The server, in a loop of its own: the command has another."""
    ready, done = threading.Event(), asyncio.Event()
    found: list[tuple[Hook, asyncio.AbstractEventLoop]] = []

    async def serve() -> None:
        async with hooked(*answers) as hook:
            found.append((hook, asyncio.get_running_loop()))
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    hook, loop = found[0]
    try:
        yield hook
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()


def run(folder: Path, alerts: str, *options: str) -> Result:
    config = folder / "routes.yaml"
    config.write_text(f"{BACKENDS}alerts: {{{alerts}}}\n")
    return CliRunner().invoke(cli, ["alerts", "test", "--config", str(config), *options])


def test_every_channel_is_asked_once(tmp_path: Path) -> None:
    with served() as hook:
        done = run(tmp_path, f"webhook: '{hook.url}/very-secret', deadman: '{hook.url}/ping'")
        assert done.exit_code == 0, done.output
        assert sorted((a.method, a.path) for a in hook.asked) == [("GET", "/ping"), ("POST", "/very-secret")]
        posted = next(a.json for a in hook.asked if a.method == "POST")
        assert [alert["kind"] for alert in posted["alerts"]] == ["test"]
        assert "test" in posted["text"]
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["ok", "webhook"], ["ok", "deadman"]]
    assert "very-secret" not in done.output


def test_what_a_channel_refuses_is_said(tmp_path: Path) -> None:
    with served(refusal("403 Forbidden", body={"description": "bot was blocked by very-secret"})) as hook:
        done = run(tmp_path, f"webhook: '{hook.url}/very-secret'")
        assert done.exit_code == 1
        assert "failed  webhook (127.0.0.1)  403: " in done.stdout
        assert "bot was blocked" in done.stdout
        assert len(hook.asked) == 1


def test_scripts_get_json(tmp_path: Path) -> None:
    with served() as hook:
        done = run(tmp_path, f"webhook: '{hook.url}/x', deadman: 'http://127.0.0.1:1/x'", "--json")
    told = json.loads(done.stdout)
    assert done.exit_code == 1
    assert not told["ok"]
    assert told["channels"][0] == {"channel": "webhook (127.0.0.1)", "ok": True, "said": "200"}
    assert not told["channels"][1]["ok"]
    assert told["channels"][1]["said"].startswith("no connection")


def test_without_a_channel_it_says_what_to_write(tmp_path: Path) -> None:
    done = run(tmp_path, "")
    assert done.exit_code == 1
    assert "write alerts: {webhook: URL}" in done.stderr
    told = run(tmp_path, "", "--json")
    assert (told.exit_code, json.loads(told.stdout)) == (1, {"ok": False, "channels": []})


@pytest.mark.parametrize("arguments", [["--config", "nowhere.yaml"], ["--nonsense"]])
def test_wrong_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli, ["alerts", "test", *arguments]).exit_code == 2


def test_a_file_that_is_not_valid(tmp_path: Path) -> None:
    done = run(tmp_path, "webhook: nonsense")
    assert done.exit_code == 1
    assert "alerts.webhook" in done.stderr
