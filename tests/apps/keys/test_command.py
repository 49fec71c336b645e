"""`gateway client`: keys of clients are made, rotated and taken out, and the gateway follows."""

from __future__ import annotations

import fcntl
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.apps.keys.command import PROGRAMS, configs_for
from gateway.cli.main import cli
from gateway.config.load import load
from tests.support import running_gateway
from tests.waiting import PATIENCE

ROUTES = """\
# my fleet
backends: {a: {url: "http://127.0.0.1:9", health: {every: none}, context: 65536}}   # one
clients:
  ops: {key: secret-of-ops, admin: true}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "routes.yaml"
    path.write_text(ROUTES)
    path.chmod(0o600)
    return path


def run(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["client", *arguments, "--config", str(file)])


def made(file: Path, *arguments: str) -> dict[str, Any]:
    result = run(file, *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_key_is_made_shown_once_and_kept_as_its_hash(file: Path) -> None:
    told = made(file, "add", "hermes", "--aliases", "a", "--budget", "1 USD/day", "--url", "http://gw:4000/v1")
    text = file.read_text()
    assert text.startswith(ROUTES)
    assert told["key"] not in text
    assert file.stat().st_mode & 0o777 == 0o600
    snapshot = load(file, {}).snapshot
    client = snapshot.clients["hermes"]
    assert (client.aliases, client.budget and client.budget.usd) == (("a",), 1.0)
    assert set(told["configs"]) == set(PROGRAMS)
    for config in told["configs"].values():
        assert told["key"] in config
        assert "http://gw:4000" in config
        assert "/v1/v1" not in config


OPEN = ROUTES.partition("clients:")[0]


def test_the_first_client_that_is_no_admin_is_told_how_to_make_one(file: Path) -> None:
    file.write_text(OPEN)
    assert "gateway client add ops --admin" in run(file, "add", "one").stderr
    assert run(file, "add", "two").stderr == ""


def test_the_first_client_may_be_the_admin(file: Path) -> None:
    file.write_text(OPEN)
    told = run(file, "add", "ops", "--admin").stderr
    assert "every caller needs a key" in told
    assert "--admin" not in told


@pytest.mark.parametrize("program", PROGRAMS)
def test_settings_of_one_program_are_printed(file: Path, program: str) -> None:
    result = run(file, "add", "x", "--for", program)
    assert result.exit_code == 0
    assert f"# {program}:" in result.stdout
    assert sum(f"# {one}:" in result.stdout for one in PROGRAMS) == 1


def test_settings_in_json_are_json() -> None:
    configs = configs_for("http://h:1", "k", "alias", 5)
    for program in ("openclaw", "opencode"):
        json.loads(configs[program].partition("\n")[2])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("add", "ops"), "rotate ops"),
        (("rotate", "opps"), "there are ops"),
        (("remove", "ops"), "last client"),
        (("add", "a b"), "a name that cannot be used"),
        (("add", "x", "--budget", "much"), "budget"),
    ],
)
def test_mistakes_change_nothing(file: Path, arguments: tuple[str, ...], told: str) -> None:
    result = run(file, *arguments)
    assert result.exit_code == 1
    assert told in result.output
    assert file.read_text() == ROUTES


async def test_both_keys_are_valid_until_the_rotation_is_finished(file: Path) -> None:
    async with running_gateway(ROUTES, file=file) as gateway:

        async def status(key: str) -> int:
            reply = await gateway.client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
            return reply.status_code

        async def after(*arguments: str) -> dict[str, Any]:
            before = gateway.gateway.snapshot
            told = made(file, *arguments)
            await gateway.until(lambda: gateway.gateway.snapshot is not before)
            return told

        first = (await after("add", "hermes"))["key"]
        second = (await after("rotate", "hermes"))["key"]
        assert [await status(key) for key in (first, second)] == [200, 200]
        await after("rotate", "hermes", "--finish")
        assert [await status(key) for key in (first, second)] == [401, 200]
        await after("remove", "hermes")
        assert [await status(key) for key in (second, "secret-of-ops")] == [401, 200]


def test_two_edits_at_a_time_wait_for_each_other_and_line_ends_stay(file: Path) -> None:
    file.write_bytes(ROUTES.replace("\n", "\r\n").encode())
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        second = threading.Thread(target=run, args=(file, "add", "second"))
        second.start()
        second.join(0.5)
        assert second.is_alive()
        file.write_bytes(file.read_bytes() + b"  first: {key: secret-of-first}\r\n")  # the first edit
    second.join(PATIENCE)
    assert [*load(file, {}).snapshot.clients] == ["ops", "first", "second"]
    assert file.read_bytes().startswith(ROUTES.replace("\n", "\r\n").encode())
