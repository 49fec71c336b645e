"""URLs on the command line."""

from __future__ import annotations

import click


def checked(url: str) -> str:
    """The URL of a server, as it may be asked. Raises UsageError."""
    from gateway.config.problems import Report
    from gateway.config.urls import check_url

    report = Report("")
    found = check_url(url, (), report)
    if found is None:
        problem = report.errors[0]
        raise click.UsageError(f"{problem.message}: {problem.hint}" if problem.hint else problem.message)
    return found
