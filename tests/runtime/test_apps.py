"""What routes.yaml asks of an app that this gateway does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.load import load_text
from gateway.runtime import apps
from gateway.runtime.gateway import Gateway
from tests.support import running_gateway

BACKENDS = "backends: {a: {url: 'http://127.0.0.1:1'}}\n"


async def test_a_missing_app_that_the_file_asks_for_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(apps, "FOLDER", tmp_path)
    async with running_gateway(BACKENDS + "alerts: {webhook: 'http://127.0.0.1:9/hook'}"):
        pass
    assert "routes.yaml asks for alerts, and this gateway has no folder gateway/apps/alerts" in caplog.text
    assert "tracing" not in caplog.text


def test_a_shared_fleet_without_its_app_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(apps, "FOLDER", tmp_path)
    shared = load_text(BACKENDS + "server: {shared: 'redis://127.0.0.1:1/0'}", "routes.yaml", {}).snapshot
    with pytest.raises(RuntimeError, match="no folder gateway/apps/cluster"):
        Gateway(shared)
