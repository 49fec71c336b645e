"""The comparison as one HTML page that needs nothing else: agreement, distribution, and both answers side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gateway.apps.judging.comparison import JudgeComparison, LineTexts, distribution

TEXT_MOST = 20_000  # characters of one text that are shown


def render(comparison: JudgeComparison, shown: Sequence[LineTexts]) -> str:
    """The whole page."""
    loader = FileSystemLoader(Path(__file__).parent)
    templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return templates.get_template("comparison_page.html.j2").render(
        comparison=comparison,
        shown=shown,
        distribution=distribution,
        text_most=TEXT_MOST,
        no_answer=Markup("<i>no answer</i>"),
    )
