"""Text of others on its way to a terminal or a log: it is shown, and does nothing."""

from __future__ import annotations

import asyncio
import json
import sys
import unicodedata
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gateway.accounting.record import RequestLine
from gateway.apps.alerts.channels import judge
from gateway.apps.bench.report import show
from gateway.apps.bench.results import Results
from gateway.apps.console import explain
from gateway.apps.console.top import StatusPoller
from gateway.apps.console.top_view import View
from gateway.apps.importing.draft import Draft
from gateway.apps.importing.output import render
from gateway.apps.probing import command as probe
from gateway.domain.tokens import NO_TOKENS
from gateway.observe.log import EventLine, as_json, as_pretty
from gateway.printable import visible, visible_all, visible_json, visible_lines
from gateway.routing.refusal import FailedAttempt
from gateway.transport.bounded import client
from tests.hostile import Write, body, endless, hostile

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\x7f\r\n2026-01-01 forged [bold red]x[/bold red]"
NEVER = "\x1b\x07\x9b\x7f\r\u202e\u2028\u2066"


def harmless(text: str) -> bool:
    return not any(char in text for char in NEVER)


# -- the helper -------------------------------------------------------------------------------------------------------


@given(st.text())
def test_visible_text_is_one_line_that_steers_nothing(text: str) -> None:
    shown = visible(text)
    assert all(unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp") for char in shown)
    assert harmless(shown)
    assert visible(shown) == shown
    shown.encode()


@given(st.text())
def test_visible_lines_begin_with_no_text_of_others(text: str) -> None:
    first, *more = visible_lines(text).split("\n")
    assert all(line.startswith("    ") for line in more)
    assert all(harmless(line) for line in (first, *more))


json_values = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(json_values)
def test_json_says_the_same_and_steers_nothing(value: Any) -> None:
    shown = visible_json(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    assert harmless(shown.decode().replace("\r", ""))
    assert json.loads(shown) == json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    assert harmless(json.dumps(visible_all(value), ensure_ascii=False).replace("\\r", ""))


@pytest.mark.parametrize("text", ["plain", "naïve café", "日本語", "a\u00a0b", "👩\u200d💻", "ﬁ → ∞"])
def test_text_of_any_language_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


# -- the log ----------------------------------------------------------------------------------------------------------

LINE = RequestLine(
    1.0, EVIL, EVIL, EVIL, "chat", True, EVIL, 1, EVIL, ("fallback", EVIL), (EVIL,),
    (FailedAttempt(EVIL, EVIL, EVIL),), NO_TOKENS, 0.0, None, 1.0,
)  # fmt: skip


@pytest.mark.parametrize("line", [LINE, EventLine(1.0, 30, EVIL, EVIL)], ids=["request", "event"])
def test_a_line_of_the_log_is_one_line_and_steers_nothing(line: RequestLine | EventLine) -> None:
    pretty = as_pretty(line).decode()
    assert harmless(pretty)
    assert not any(shown.startswith("2026") for shown in pretty.split("\n")[1:])
    machine = as_json(line).decode()
    assert harmless(machine)
    assert machine.count("\n") == 1
    assert json.loads(machine)["message" if isinstance(line, EventLine) else "id"] == EVIL


def test_a_traceback_keeps_its_lines() -> None:
    text = 'it failed\nTraceback (most recent call last):\n  File "x.py", line 1\nValueError: x'
    pretty = as_pretty(EventLine(1.0, 40, "gateway", text)).decode()
    assert [line.strip() for line in pretty.split("\n")[1:4]] == [line.strip() for line in text.split("\n")[1:]]


def test_what_an_alert_channel_answers_is_shown() -> None:
    assert harmless(judge(400, {}, EVIL.encode()).detail)


async def run_command(*arguments: str) -> str:
    """All that a command prints, as its own process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", *arguments), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    return out.decode()


# -- the commands -----------------------------------------------------------------------------------------------------

MODELS = json.dumps({"data": [{"id": EVIL, "max_model_len": 4096}]}).encode()
ANSWERS: dict[str, Write] = {
    "models": body(MODELS),
    "version": body(json.dumps({"version": EVIL}).encode()),
    "completions": body(json.dumps({"error": {"message": EVIL}}).encode()),
}


@pytest.mark.parametrize(
    "arguments", [("check", "--live", "--config"), ("probe", "--direct", "--now", "--config")], ids=["check", "probe"]
)
async def test_a_backends_words_reach_no_terminal(arguments: tuple[str, ...], tmp_path: Path) -> None:
    async with hostile(**ANSWERS) as url:
        path = tmp_path / "routes.yaml"
        path.write_text(f"server: {{listen: '127.0.0.1:9'}}\nbackends: {{a: {{url: '{url}', model: m}}}}\n")
        text = await run_command(*arguments, str(path))
    assert "owned" in text
    assert harmless(text)
    assert "\n2026" not in text


async def test_init_shows_and_writes_no_words_that_steer(tmp_path: Path) -> None:
    async with hostile(models=ANSWERS["models"]) as url:
        text = await run_command("init", url, "--no-probe", "-o", str(tmp_path / "made.yaml"))
    assert "owned" in text
    assert harmless(text)
    assert harmless((tmp_path / "made.yaml").read_text() if (tmp_path / "made.yaml").exists() else "")


FINDINGS = {
    "backend": "a",
    "engine": EVIL,
    "model": EVIL,
    "state": EVIL,
    "checks": {"plain": {"result": "no", "seen": EVIL, "at": 1.0}},
    "drift": [EVIL],
    "problems": [EVIL],
}


def test_findings_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    probe._print([visible_all(FINDINGS)], {})
    shown = capsys.readouterr().out
    assert harmless(shown)
    assert "[bold red]" in shown


def test_top_draws_what_a_gateway_tells() -> None:
    status = {
        "version": EVIL,
        "backends": {
            EVIL: {"state": EVIL, "reason": EVIL, "drift": [EVIL], "inflight": 10**400, "queue": float("inf")}
        },
        "aliases": {EVIL: {"course": "nothing", "why": EVIL, "serving": [EVIL]}},
        "events": [{"at": 1, "after": EVIL, "reason": EVIL, "backend": EVIL}],
        "config": {"error": EVIL},
    }
    out = StringIO()
    console = Console(file=out, width=200, height=80, force_terminal=False)
    console.print(
        View("http://x", status=visible_all(status), usage=visible_all({"today": {"clients": [{"client": EVIL}]}}))
    )
    assert harmless(out.getvalue())
    assert "[bold red]" in out.getvalue()


async def test_top_reads_a_gateway_s_words_as_text() -> None:
    async with hostile(
        status=body(json.dumps({"version": EVIL, "backends": {EVIL: {"reason": EVIL}}}).encode())
    ) as url:

        def look() -> View:
            with client(3.0, base_url=url) as asking:
                watch = StatusPoller(asking, url)
                watch.look()
                return watch.view

        view = await asyncio.to_thread(look)
    assert view.trouble is None
    assert harmless(str(view.status["version"]))
    assert all(harmless(name) for name in view.status["backends"])


async def test_an_endless_status_is_no_gateway_s() -> None:
    async with hostile(status=endless(b"x" * 65536)) as url:

        def look() -> View:
            with client(3.0, base_url=url) as asking:
                watch = StatusPoller(asking, url)
                watch.look()
                return watch.view

        view = await asyncio.to_thread(look)
    assert view.trouble is not None
    assert "more than" in view.trouble or "does not answer" in view.trouble


@pytest.mark.parametrize(
    "told", [{}, [], 5, {"served": True}, {"served": 1, "alias": 5, "request": []}, {"error": "x"}]
)
def test_an_explanation_that_is_none_is_wrong_usage(told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "routes.yaml").write_text("backends: {a: {url: 'http://127.0.0.1:1'}}\n")
    monkeypatch.setattr(explain, "_ask", lambda *_: (told, "the running gateway"))
    result = CliRunner().invoke(explain.command, ["a", "--config", str(tmp_path / "routes.yaml")])
    assert result.exit_code == 2
    assert "does not answer as a gateway" in result.output


def test_bench_shows_what_failed() -> None:
    results = Results(16)
    results.notes.append(EVIL)
    out = StringIO()
    show(Console(file=out, width=200), EVIL, results)
    assert harmless(out.getvalue())
    assert "[bold red]" in out.getvalue()


def test_a_comment_of_an_imported_file_stays_a_comment() -> None:
    draft = Draft()
    draft.head = ["Imported from x\nserver: {listen: '0.0.0.0:1'}"]
    draft.tail = [f"#   line 1, x: {EVIL}"]
    text = render(draft)
    assert harmless(text)
    assert all(line.startswith("#") for line in text.split("\n") if line)
