"""Commands of routes.yaml: kept as written, refused where they cannot be run."""

from __future__ import annotations

import pytest

from tests.config.test_fleet_launch_keys import mistakes, snapshot


def test_commands_stay_as_they_are_written() -> None:
    text = "backends: {a: {url: 'http://127.0.0.1:1', start: \"sh -c 'run ${NAME} && true'\", stop: docker stop a}}"
    a = snapshot(text).backends["a"]
    assert (a.start, a.stop) == ("sh -c 'run ${NAME} && true'", "docker stop a")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("docker start 'a", "a quote is never closed"),
        ("'# nothing'", "has no word"),
        ("''", "is empty"),
        ("[docker, start]", "is not a command line"),
    ],
)
def test_a_command_that_cannot_be_run_is_a_mistake(line: str, said: str) -> None:
    text = f"backends:\n  a:\n    url: http://127.0.0.1:1\n    start: {line}\n"
    (mistake,) = mistakes(text)
    assert "routes.yaml:5  backends.a.start" in mistake
    assert said in mistake
