"""What mkdocs is told beyond mkdocs.yml: which pages there are, and how links are shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_ROW = re.compile(r"^\| \[[^]]*\]\(([\w-]+\.md)\)")
_PAGE = re.compile(r"\[([\w-]+)\.md\](?=\()")
_OUTSIDE = re.compile(r"\[`?([^]`]*)`?\]\(\.\./[^)]*\)")


def on_config(config: Any) -> Any:
    """The navigation is the index: its headings, and under each the pages of its table."""
    config.nav = navigation((Path(config.docs_dir) / "index.md").read_text())
    return config


def navigation(index: str) -> list[dict[str, Any]]:
    """`[{"Home": "index.md"}, {HEADING: [PAGE, ...]}, ...]` of the index' text."""
    nav: list[dict[str, Any]] = [{"Home": "index.md"}]
    pages: list[str] = []
    for line in index.splitlines():
        if line.startswith("## "):
            pages = []
            nav.append({line[3:].strip(): pages})
        elif row := _ROW.match(line):
            pages.append(row[1])
    return nav


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to pages lose the `.md` of their text. Other files are not part of the site: their name stays."""
    return _PAGE.sub(r"[\1]", _OUTSIDE.sub(r"`\1`", markdown))
