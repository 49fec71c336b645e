"""`GET /` and what the page is made of, without a browser."""

from __future__ import annotations

import re

import pytest

from gateway.apps.page.assets import FOLDER, POLICY, TYPES, read_assets
from simulator import SimVllm
from tests.support import running_gateway

OURS = [path for path in sorted(FOLDER.glob("*")) if path.suffix in TYPES]


@pytest.mark.parametrize("clients", ["", "clients: {ops: {key: k, admin: true}}"])
async def test_the_page_is_open_and_shut_to_everything_else(clients: str) -> None:
    async with (
        SimVllm("secret-name").serve() as url,
        running_gateway(f"backends: {{secret-name: {{url: '{url}'}}}}\n{clients}") as gateway,
    ):
        answer = await gateway.client.get("/")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "secret-name" not in answer.text
        again = await gateway.client.get("/", headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert not re.findall(r'(?:src|href)="/', answer.text), "a proxy may serve the page below a path of its own"
        for name in re.findall(r'(?:src|href)="(web/[^"]+)"', answer.text):
            part = await gateway.client.get(f"/{name}")
            assert part.status_code == 200, name
            assert part.headers["content-security-policy"] == POLICY


@pytest.mark.parametrize(
    "path",
    [
        "/web/",
        "/web/nothing.js",
        "/web/../core.py",
        "/web/%2e%2e/core.py",
        "/web/vendor/uplot/README.md",
        "/index.html",
    ],
)
async def test_nothing_else_is_served(path: str) -> None:
    async with SimVllm("a").serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        answer = await gateway.client.get(path)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"


def test_no_other_host_is_named_and_nothing_is_inline() -> None:
    for path in OURS:
        text = path.read_text()
        hosts = set(re.findall(r"\b(?:https?:)?//[\w.-]+\.\w+[\w/]*", text)) - {"http://www.w3.org/2000/svg"}
        assert hosts == set(), path.name
        assert (
            re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon[a-z]+=\"|innerHTML|insertAdjacentHTML", text) == []
        ), path.name


def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    assert POLICY.startswith("default-src 'none';")
    assert "unsafe" not in POLICY
    assert "*" not in POLICY
    assert "frame-ancestors 'none'" in POLICY


def test_every_module_that_is_imported_is_there() -> None:
    assets = dict(read_assets())
    for path in OURS:
        for name in re.findall(r'from "\./([\w.]+)"', path.read_text()):
            assert name in assets, f"{path.name} imports {name}"


def test_what_is_vendored_has_its_licence_and_version_beside_it() -> None:
    folder = FOLDER / "vendor" / "uplot"
    version = re.search(r"\(v([\d.]+)\)", (folder / "uPlot.iife.min.js").read_text()[:200])
    assert version is not None
    assert version[1] in (folder / "README.md").read_text()
    assert "MIT" in (folder / "LICENSE").read_text()
