"""`gateway check --live`: what each backend serves, beside what routes.yaml declares."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.apps.fleet.checking.test_command import file, run


def test_live_expects_nothing_of_what_is_outside_the_mode(tmp_path: Path) -> None:
    with backend({}) as gone, backend({"m": None}) as there:
        pass
    with backend({"m": None}) as there:
        modes = "modes: {daily: [b], large: [a]}\n"
        code, said = live(tmp_path, f'  a: {{url: "{gone}"}}\n  b: {{url: "{there}"}}\n{modes}')
    assert code == 0
    assert "  a: not reachable: parked (outside mode 'daily')\n" in said


@contextmanager
def backend(models: dict[str, int | None], health: int = 200, key: str | None = None) -> Iterator[str]:
    """A server with `/health` and `/v1/models`; with `key` the latter wants it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = key is None or self.headers.get("authorization") == f"Bearer {key}"
            found = {"/health": health, "/v1/models": 200 if allowed else 401}.get(self.path, 404)
            cards = [{"id": name, "max_model_len": window} for name, window in models.items()]
            body = json.dumps({"data": cards}).encode() if self.path == "/v1/models" else b""
            self.send_response(found)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def live(folder: Path, backends: str) -> tuple[int, str]:
    result = run(file(folder, f"backends:\n{backends}"), "--live")
    answers, _, verdict = result.output.partition("\nAnswers\n")[2].partition(f"\n{folder}")
    assert (", but not what is there (" in verdict) == (result.exit_code == 1)
    return result.exit_code, answers


def test_live_says_what_every_backend_serves(tmp_path: Path) -> None:
    with backend({"m1": 65536}, key="k") as url:
        code, said = live(tmp_path, f'  a: {{url: "{url}", model: m1, context: 65536, api_key: k}}\n')
    assert (code, said) == (0, "  a: health 200, serves m1\n")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("model: m2", "does not serve 'm2'"),
        ("context: 131072", "its window is 65,536 tokens, the file says 131,072"),
        ("api_key: wrong", "models answers 401: its api_key is missing or wrong"),
    ],
)
def test_live_tells_what_differs_from_the_file(tmp_path: Path, settings: str, problem: str) -> None:
    with backend({"m1": 65536}, key="wrong-not" if "api_key" in settings else None) as url:
        code, said = live(tmp_path, f'  a: {{url: "{url}/v1", {settings}}}\n')
    assert code == 1
    assert f"\n    problem: {problem}\n" in said


def test_live_knows_the_absent_from_the_parked(tmp_path: Path) -> None:
    with backend({}) as url:
        gone = url  # its port is closed again below
    code, said = live(tmp_path, f'  a: {{url: "{gone}", run: on_demand}}\n')
    assert (code, said) == (0, "  a: not reachable: parked (on_demand)\n")
    code, said = live(tmp_path, f'  a: {{url: "{gone}"}}\n')
    assert (code, said) == (1, "  a: not reachable\n    problem: not reachable\n")


def test_live_sees_an_engine_that_is_ill(tmp_path: Path) -> None:
    with backend({"m": None}, health=503) as url:
        code, said = live(tmp_path, f'  a: {{url: "{url}"}}\n')
    assert code == 1
    assert "problem: /health answers 503" in said
