"""`gateway usage`: sums for people and for scripts, and what it says where there is nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from gateway.accounting.ledger import Ledger
from gateway.accounting.ledger_file import DAY, NAME, Entry, LedgerFile
from gateway.cli.main import cli
from tests.waiting import wait_until


def used(client: str, backend: str, days: float = 0.0, **more: Any) -> Entry:
    at = time.time() - days * DAY - 1.0
    usual = Entry(at, client, "writer", backend, "chat", "200", 1, 2.0, 1000, 200, 300, 50, 0.0, 0)
    return replace(usual, **more)


LINES = [
    used("hermes", "qwen36"),
    used("hermes", "qwen36", 6.0, outcome="upstream_error", prompt=0, completion=0, cached=0, reasoning=0),
    used("hermes", "fireworks", usd=0.0125),
    used("hermes", "fireworks", unpriced=1),
    used("webui", "qwen36", prompt=5000),
    used("webui", "claude", unpriced=1),
    used("webui", "qwen36", 20.0, prompt=7),
]


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "routes.yaml"
    path.write_text(f"server: {{data: '{tmp_path}/state'}}\nbackends: {{a: {{url: 'http://10.0.0.1:8001'}}}}\n")
    return str(path)


def filled(config: str) -> str:
    (Path(config).parent / "state").mkdir()
    file = LedgerFile(Path(config).parent / "state" / NAME)
    file.write(LINES)
    file.close()
    return config


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["usage", *arguments])


def told(*arguments: str) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_by_client_alias_and_backend(config: str) -> None:
    rows = told("--config", filled(config))["usage"]
    assert [(r["client"], r["alias"], r["backend"]) for r in rows] == [
        ("webui", "writer", "qwen36"),
        ("hermes", "writer", "fireworks"),
        ("hermes", "writer", "qwen36"),
        ("webui", "writer", "claude"),
    ]
    first = {"client": "webui", "alias": "writer", "backend": "qwen36", "requests": 1, "errors": 0, "seconds": 2.0}
    first |= {"prompt": 5000, "completion": 200, "cached": 300, "reasoning": 50, "usd": 0.0, "unpriced": 0}
    first |= {"audio_in_seconds": 0.0, "audio_out_seconds": 0.0}
    assert rows[0] == first
    assert [(r["usd"], r["unpriced"]) for r in rows[1:]] == [(0.0125, 1), (0.0, 0), (None, 1)]


@pytest.mark.parametrize(
    ("by", "requests"),
    [
        ("client", {"hermes": (4, 1), "webui": (2, 0)}),
        ("alias", {"writer": (6, 1)}),
        ("backend", {"qwen36": (3, 1), "fireworks": (2, 0), "claude": (1, 0)}),
    ],
)
def test_by_one_of_them(config: str, by: str, requests: dict[str, tuple[int, int]]) -> None:
    rows = told("--config", filled(config), "--by", by)["usage"]
    assert {r[by]: (r["requests"], r["errors"]) for r in rows} == requests


def test_only_what_was_since_then(config: str) -> None:
    filled(config)
    assert sum(r["requests"] for r in told("--config", config, "--since", "30d")["usage"]) == 7
    assert sum(r["requests"] for r in told("--config", config, "--since", "5d")["usage"]) == 5


def test_the_table_is_for_people(config: str) -> None:
    done = run("--config", filled(config))
    assert done.exit_code == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["webui", "writer", "qwen36", "1", "0", "2", "5,000", "300", "200", "50", "0"] in lines
    assert ["hermes", "writer", "fireworks", "2", "0", "4", "2,000", "600", "400", "100", "0.0125", "+", "?"] in lines
    assert ["webui", "writer", "claude", "1", "0", "2", "1,000", "300", "200", "50", "unknown"] in lines
    assert ["all", "6", "1", "12", "9,000", "1,500", "1,000", "250", "0.0125", "+", "?"] in lines
    assert "the price is not known" in done.stdout


def test_seconds_of_speech_have_a_column_where_there_is_speech(config: str, tmp_path: Path) -> None:
    assert "audio" not in run("--config", filled(config)).stdout
    file = LedgerFile(tmp_path / "state" / NAME)
    nothing = {"prompt": 0, "completion": 0, "cached": 0, "reasoning": 0}
    heard = used("webui", "parakeet", endpoint="transcriptions", audio_in_seconds=1800.25, **nothing)
    file.write([heard, used("webui", "chatterbox", endpoint="speech", audio_out_seconds=2.5, **nothing)])
    file.close()
    lines = [line.split() for line in run("--config", config).stdout.splitlines()]
    assert ["webui", "writer", "parakeet", "1", "0", "2", "0", "0", "0", "0", "1,800.2", "0"] in lines
    assert ["webui", "writer", "chatterbox", "1", "0", "2", "0", "0", "0", "0", "2.5", "0"] in lines
    rows = {row["client"]: row for row in told("--config", config, "--by", "client")["usage"]}
    assert (rows["webui"]["audio_in_seconds"], rows["webui"]["audio_out_seconds"]) == (1800.25, 2.5)


def test_it_can_be_asked_while_the_ledger_is_written(config: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "state")
    ledger.open()
    try:
        ledger.put(used("hermes", "qwen36"))
        wait_until(lambda: run("--config", config).exit_code == 0)  # the file is being made
        wait_until(lambda: told("--config", config)["usage"])
        assert [r["requests"] for r in told("--config", config)["usage"]] == [1]
    finally:
        ledger.close()


def test_without_a_request_it_says_so(config: str) -> None:
    filled(config)
    assert run("--config", config, "--since", "1ms").output == "No request in the last 1ms.\n"


@pytest.mark.parametrize(
    ("case", "exit_code", "words"),
    [
        ("none", 1, "there is no ledger"),
        ("garbage", 1, "cannot be read: file is not a database"),
        ("since", 2, "--since yesterday: write a number and its unit"),
        ("by", 2, "Invalid value for '--by'"),
        ("file", 2, "there is no file"),
        ("config", 1, "routes.yaml"),
    ],
)
def test_what_goes_wrong_is_said(config: str, case: str, exit_code: int, words: str) -> None:
    arguments = ["--config", config]
    if case == "garbage":
        filled(config)
        (Path(config).parent / "state" / NAME).write_bytes(b"no database" * 1000)
    elif case == "since":
        arguments += ["--since", "yesterday"]
    elif case == "by":
        arguments += ["--by", "day"]
    elif case == "file":
        arguments = ["--config", config + "x"]
    elif case == "config":
        Path(config).write_text("backends: {a: {url: 5}}")
    done = run(*arguments)
    assert (done.exit_code, words in done.output) == (exit_code, True), done.output
