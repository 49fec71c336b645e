"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def config_option(command: F) -> F:
    """`--config FILE`, given to the command as `config: Path`."""
    option = click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        default=Path("routes.yaml"),
        show_default=True,
        help="The file that says which backends and aliases there are.",
    )
    return option(command)


def json_option(command: F) -> F:
    """`--json`, given to the command as `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")(command)
