"""The site that `make docs` builds: every page is in it, and it asks nobody for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.demo_process import PATIENCE, ROOT

PAGES = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
# What a browser fetches by itself: not links that a person may follow.
FETCHED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*?\bsrc=\"([^\"]+)|<link\b[^>]*?\bhref=\"([^\"]+)", re.I)
FETCHED_BY_CSS = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^)\"']+)", re.I)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as strictly as `make docs` does: a dead link or anchor, or a page that is in no list, ends it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_built_and_can_be_reached_from_every_other(site: Path) -> None:
    assert sorted(path.stem for path in site.glob("*.html")) == sorted([*PAGES, "404"])
    navigation = (site / "troubleshooting.html").read_text()
    assert [page for page in PAGES if f'href="{page}.html"' not in navigation and page != "troubleshooting"] == []


def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        fetched = [source or sheet for source, sheet in FETCHED.findall(path.read_text())]
        assert fetched
        assert [url for url in fetched if url.startswith(("http:", "https:", "//"))] == [], path.name
    for path in site.rglob("*.css"):
        assert FETCHED_BY_CSS.findall(path.read_text(errors="replace")) == [], path.name


def test_no_list_or_table_has_become_a_paragraph(site: Path) -> None:
    """They need an empty line before them here, where code hosts do not."""
    for path in site.rglob("*.html"):
        paragraphs = re.findall(r"<p>(.*?)</p>", path.read_text(), re.S)
        assert [text for text in paragraphs if re.search(r"^(?:- |\||\d+\. )", text, re.M)] == [], path.name


def test_links_to_other_files_of_the_repository_are_only_their_names(site: Path) -> None:
    page = (site / "deploy.html").read_text()
    assert "<code>requirements.lock</code>" in page
    assert 'href="../' not in page


def test_the_tools_that_make_it_are_not_in_it(site: Path) -> None:
    assert list(site.rglob("*.py")) == []
