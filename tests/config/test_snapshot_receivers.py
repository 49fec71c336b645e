"""URLs of receivers of alerts and traces: one that no client could send to is an error, with its line."""

from __future__ import annotations

import pytest

from gateway.config.load import load_text
from gateway.config.problems import ConfigError

B = 'backends: {q: {url: "http://x:1"}}\n'
PLACES = {
    "alerts.webhook": "alerts: {{webhook: {0}}}",
    "alerts.deadman": "alerts: {{deadman: {0}}}",
    "traces.endpoint": "traces: {{endpoint: {0}, prompts: true}}",
}


def problems(place: str, url: str) -> list[str]:
    text = B + PLACES[place].format(f'"{url}"') + "\n"
    try:
        load_text(text, "routes.yaml", {})
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "https:///sekret",
        "http://:4318/sekret",
        "http://h:0/sekret",
        "http://h:99999/sekret",
        "http://h:sekret/x",
        "http://[::1/sekret",
        "http://[sekret]/x",
        "http:// h/sekret",
        "http://a b/sekret",
        "http://1.2.3.400/sekret",
        "http://-sekret-/x",
    ],
)
def test_a_url_that_nothing_can_be_sent_to_is_an_error_at_its_line(place: str, url: str) -> None:
    found = problems(place, url)
    assert len(found) == 1
    assert found[0].startswith(f"routes.yaml:2  {place}: ")
    assert "sekret" not in found[0]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "url",
    [
        "http://collector:4318",
        "https://user:p%40ss@hooks.example.com/services/T0/B0?x=a b#c",
        "http://[::1]:4318/v1/traces",
        "http://10.0.0.7:80/hook/",
        "https://bücher.example/hook",
        "http://otel_collector.lan.",
    ],
)
def test_a_url_that_a_client_understands_is_taken(place: str, url: str) -> None:
    assert problems(place, url) == []
