"""The parts of docs/connect.md, one for each program: what it says is tried with the real ones."""

from __future__ import annotations

from tests.demo_process import ROOT

_PAGE = (ROOT / "docs/connect.md").read_text()
PARTS = {
    title.partition("\n")[0].lower().replace(" ", "-"): title.partition("\n")[2] for title in _PAGE.split("\n## ")[1:]
}
"""The text below each heading, by its anchor."""
