"""What `/admin` says to those it does not serve: which refusal it is, and what to do."""

from __future__ import annotations

import pytest

from tests.api.test_admin import CLIENTS, HERMES
from tests.support import running_gateway

TEXT = "backends: {a: {url: 'http://127.0.0.1:9'}}\n"


@pytest.mark.parametrize(
    ("clients", "headers", "code", "words"),
    [
        (CLIENTS, {"x-api-key": HERMES}, "admin_only", ("Client 'hermes' is no admin", "`admin: true`")),
        ("", {"host": "gateway.lan:4000"}, "admin_only", ("Without `clients`", "at 127.0.0.1 or localhost")),
        (
            *(CLIENTS, {"origin": "http://evil.example", "x-api-key": HERMES}, "foreign_origin"),
            ("gateway's own page", "must pass on `Host`"),
        ),
    ],
)
@pytest.mark.parametrize("path", ["backends/a/drain", "backends/a/resume", "backends/a/probe", "reload", "explain"])
async def test_a_refusal_has_a_code_of_its_own_and_says_what_to_do(
    clients: str, headers: dict[str, str], code: str, words: tuple[str, ...], path: str
) -> None:
    async with running_gateway(TEXT + clients) as gateway:
        answer = await gateway.client.post(f"/admin/{path}", headers=headers, json={"alias": "a"})
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["code"]) == (403, "permission_error", code)
        assert all(word in error["message"] for word in words)
        assert answer.headers["retry-after"] == "1"
