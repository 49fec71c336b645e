"""The URL of `server.shared`: what is wrong with it is said when routes.yaml is read, without the password."""

from __future__ import annotations

import pytest

from gateway.config.load import load_text
from tests.config.test_validate import FINE, mistakes


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://h", "must be a URL that starts with redis:// or rediss:// or unix://"),
        ("redis://h:99999/0", "is not a URL"),
        ("redis://:hush/hush@h:6379/0", "in a password / ? # @ are written %2F %3F %23 %40"),
        ("redis://:hush@h:6379/fleet", "its database is not a number"),
        ("redis://h/0?sockettimeout=hush", "its parameter 'sockettimeout' is unknown"),
        ("redis://h/0?socket_timeout=hush", "its parameter 'socket_timeout' has a value that cannot be used"),
        ("redis://h/0?ssl_ca_certs=hush", "its parameter 'ssl_ca_certs' is unknown"),
        ("rediss://h/0?ssl_cert_reqs=hush", "its parameter 'ssl_cert_reqs' has a value"),
        ("unix://", "names no socket"),
    ],
)
def test_what_is_wrong_is_said(url: str, said: str) -> None:
    (line,) = mistakes(f"{FINE}server: {{shared: '{url}'}}\n")
    assert "server.shared: " in line
    assert said in line
    assert "hush" not in line


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://h/",
        "redis://user:p%2Fq@h:6379/3?socket_timeout=1",
        "redis://[::1]:6379/0",
        "rediss://h:6380/0?ssl_ca_certs=/etc/ssl/redis.pem&ssl_cert_reqs=required&ssl_check_hostname=false",
        "unix:///run/redis/redis.sock?db=2",
        "unix://:p@/run/redis/redis.sock",
    ],
)
def test_what_the_library_understands_is_taken(url: str) -> None:
    shared = load_text(f"{FINE}server: {{shared: '{url}'}}\n", "routes.yaml", {}).snapshot.server.shared
    assert shared is not None
    assert shared.reveal() == url
