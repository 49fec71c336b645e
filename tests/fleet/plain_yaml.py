"""Test data in YAML, read as routes.yaml is: `on` and `none` stay words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.config.document import read_document
from gateway.config.problems import Report


def plain_yaml(path: Path) -> dict[str, Any]:
    report = Report(str(path))
    data = read_document(path.read_text(), report)
    report.finish()
    assert data is not None
    return data
