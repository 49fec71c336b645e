"""Commands and answers are bounded."""

from __future__ import annotations

import http.server
import threading

from gateway.apps.fleet.preflight.host import (
    CommandResult,
    fetch_bounded,
    run_bounded,
)
from tests.limits import within

# -- commands and answers are bounded ---------------------------------------------------------------------------------


def test_a_command_that_never_ends_is_killed_with_its_children() -> None:
    with within(5):
        ran = run_bounded(["sh", "-c", "sleep 60 & wait"], 0.2)
    assert (ran.code, ran.why) == (None, "sh: no answer in time")


def test_a_command_that_never_stops_talking_is_killed() -> None:
    ran = run_bounded(["yes"], 30, most=10_000)
    assert ran.code is None
    assert "more than 10000 bytes" in ran.why


def test_input_output_and_exit_code() -> None:
    assert run_bounded(["cat"], 10, "x" * 300_000, 1_000_000).out == "x" * 300_000
    assert run_bounded(["sh", "-c", "echo no >&2; exit 3"]) == CommandResult(3, "", "no\n")
    assert run_bounded(["/nonexistent/x"]).why == "/nonexistent/x is not installed"
    assert run_bounded(["a\0b"]).code is None


def test_an_answer_is_read_up_to_its_bound_and_an_error_is_an_answer() -> None:
    class Talker(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/" else 404)
            self.end_headers()
            self.wfile.write(b"a" * 400_000)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Talker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert len(fetch_bounded(f"{url}/") or "") == 256 * 1024
        assert fetch_bounded(f"{url}/other") == "status 404"
        server.shutdown()
    assert fetch_bounded(f"{url}/") is None
    assert fetch_bounded("no url") is None
