"""The image and the compose file on a real docker daemon, by the commands of docs/deploy.md."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from bench.ports import free_ports
from gateway import __version__
from tests.machines.pages import steps
from tests.machines.scene import DOCKER, IMAGE, ROOT, chat, checked, http, run, until

pytestmark = [pytest.mark.usefixtures("image"), pytest.mark.timeout(600)]
ROUTES = """\
server: {{shutdown: 20s}}
defaults: {{health: {{every: 500ms, canary: none}}}}
backends: {{one: {{url: "http://{host}:{port}", slots: 4}}}}
aliases: {{main: [one]{more}}}
"""
HOST = "10.77.0.129"  # of the daemon's bridge: where containers reach this machine


@pytest.fixture(scope="module")
def engine(image: None) -> Iterator[int]:
    """The port of a simulated engine, in a container too."""
    port = free_ports(1)
    words = ["sim", "vllm", "--host", "0.0.0.0", "--port", str(port), "--model", "m", "--decode", "10"]
    name = checked(["docker", "run", "-d", "--rm", "--network", "host", IMAGE, *words]).strip()
    yield port
    run(["docker", "rm", "-f", name])


@pytest.fixture
def routes(engine: int, tmp_path: Path) -> Path:
    """A folder that holds routes.yaml and nothing else."""
    folder = tmp_path / "routes"
    folder.mkdir()
    (folder / "routes.yaml").write_text(ROUTES.format(host=HOST, port=engine, more=""))
    for path in (tmp_path.parent.parent, tmp_path.parent, tmp_path, folder):
        path.chmod(0o755)
    return folder


@pytest.fixture
def gateway(routes: Path) -> Iterator[tuple[str, str]]:
    """(container, URL), as docs/deploy.md starts it, with a root that cannot be written."""
    port = free_ports(1)
    publish, mount = f"127.0.0.1:{port}:4000", f"{routes}:/etc/gateway:ro"
    hard = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true"]
    kept = ["-v", "/var/lib/gateway"]
    command = ["docker", "run", "-d", "-p", publish, "-v", mount, *kept, *hard, "--stop-timeout", "140", IMAGE]
    name = checked(command).strip()
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: chat("main", url)[0] == 200, 60, "the container answers")
        yield name, url
    finally:
        run(["docker", "rm", "-f", "-v", name])


def inside(name: str, *words: str) -> str:
    return checked(["docker", "exec", name, *words])


def test_the_demo_answers() -> None:
    port = free_ports(1)
    publish = f"127.0.0.1:{port}:4000"
    name = checked(["docker", "run", "-d", "--rm", "-p", publish, IMAGE, "demo", "--host", "0.0.0.0"]).strip()
    try:
        until(lambda: chat("spark-qwen36", f"http://127.0.0.1:{port}")[0] == 200, 60, "the demo answers")
    finally:
        run(["docker", "rm", "-f", name])


def test_the_commands_of_the_page_run_it_back_it_up_and_read_its_limit(routes: Path, tmp_path: Path) -> None:
    """With another port, folder and volume; the image is there."""
    port = free_ports(1)
    _, run_it, _ = steps("container")
    volume = f"spark-gateway-{port}"
    changed = {
        "127.0.0.1:4000:": f"127.0.0.1:{port}:",
        "/etc/spark-gateway/routes": str(routes),
        "run --rm": "run --rm -d",
    }
    changed |= {"spark-gateway:/var": f"{volume}:/var", f"spark-gateway:{__version__}": IMAGE}
    for shown, here in changed.items():
        assert shown in run_it
        run_it = run_it.replace(shown, here)
    name = checked(shlex.split(run_it)).strip()
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: chat("main", url)[0] == 200, 60, "the container answers")
        until(lambda: "usage.db" in inside(name, "ls", "/var/lib/gateway/state"), 30, "the usage is written")
        (back_up,) = [line for line in steps("backup") if "docker" in line]
        checked(["sh", "-c", f"cd {tmp_path}; {back_up.replace('CONTAINER', name)}"])
        with tarfile.open(tmp_path / "gateway.tar.gz") as archive:
            assert "usage.db" in archive.getnames()
        limit = inside(name, "sh", "-c", "ulimit -Hn").strip()
        assert limit == "unlimited" or int(limit) > 1000
    finally:
        run(["docker", "stop", name])
        run(["docker", "volume", "rm", volume])


def test_it_is_healthy_and_runs_as_nobody_in_particular(gateway: tuple[str, str]) -> None:
    name, _ = gateway
    healthy = ["docker", "inspect", "-f", "{{.State.Health.Status}}", name]
    until(lambda: checked(healthy).strip() == "healthy", 40, "the health check")
    assert inside(name, "id", "-u").strip() == "10001"
    refused = run(["docker", "exec", name, "touch", "/etc/gateway/x", "/opt/x"])
    assert refused.returncode != 0


def test_every_command_beside_it_finds_its_file(gateway: tuple[str, str]) -> None:
    name, url = gateway
    assert "routes.yaml: fine (1 backend" in inside(name, "gateway", "check")
    assert "one" in inside(name, "gateway", "explain", "main")
    assert "one" in inside(name, "gateway", "top", "--once")
    assert "ready" in inside(name, "gateway", "fleet", "status")
    assert chat("main", url)[0] == 200
    until(lambda: "main" in run(["docker", "exec", name, "gateway", "usage"]).stdout, 30, "the ledger is written")
    line = "gateway backup /tmp/b.tar.gz >&2 && cat /tmp/b.tar.gz && rm /tmp/b.tar.gz"
    packed = subprocess.run(["docker", "exec", name, "sh", "-c", line], env=DOCKER, capture_output=True, check=True)
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        assert "usage.db" in archive.getnames()


@pytest.mark.parametrize("by_rename", [False, True], ids=["in place", "by rename"])
def test_an_edit_is_followed(gateway: tuple[str, str], routes: Path, engine: int, by_rename: bool) -> None:
    _, url = gateway
    text = ROUTES.format(host=HOST, port=engine, more=", other: [one]")
    if by_rename:
        (routes / "new").write_text(text)
        (routes / "new").rename(routes / "routes.yaml")
    else:
        (routes / "routes.yaml").write_text(text)
    until(lambda: chat("other", url)[0] == 200, 20, "the edit is in force")


def test_a_stream_ends_whole_when_the_container_is_stopped(gateway: tuple[str, str]) -> None:
    name, url = gateway
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60) as client:
        messages = [{"role": "user", "content": "40 words please"}]
        body = json.dumps({"model": "main", "stream": True, "messages": messages}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        seen = client.recv(65536)
        stopping = subprocess.Popen(["docker", "stop", "-t", "140", name], env=DOCKER, stdout=subprocess.DEVNULL)
        while piece := client.recv(65536):
            seen += piece
        assert b"data: [DONE]" in seen
    assert stopping.wait(60) == 0
    state = json.loads(checked(["docker", "inspect", name]))[0]["State"]
    assert (state["ExitCode"], state["OOMKilled"]) == (0, False)


def compose() -> list[str]:
    found = [["docker", "compose"], ["docker-compose"]]
    for words in found:
        try:
            if run([*words, "version"]).returncode == 0:
                return words
        except FileNotFoundError:
            continue
    pytest.skip("no compose here")


def test_the_gateway_of_the_compose_file_keeps_its_volume_and_follows_edits(routes: Path, engine: int) -> None:
    """`up` of the gateway alone: the other images cannot be had everywhere."""
    if http("http://127.0.0.1:4000/health")[0]:
        pytest.skip("port 4000 is in use here")
    environ = {"ROUTES": str(routes)}
    words = [*compose(), "-f", "deploy/docker-compose.yml"]
    (shipped,) = re.findall(r"image: (spark-gateway:\S+)", (ROOT / "deploy/docker-compose.yml").read_text())
    checked(["docker", "tag", IMAGE, shipped])
    url = "http://127.0.0.1:4000"

    def usage() -> str:
        return run([*words, "exec", "-T", "gateway", "gateway", "usage", "--by", "alias"], environ=environ).stdout

    try:
        checked([*words, "up", "-d", "--no-build", "--no-deps", "gateway"], environ=environ)
        until(lambda: chat("main", url)[0] == 200, 60, "the gateway of compose answers")
        until(lambda: "main" in usage(), 30, "its ledger")
        os.replace(_edited(routes, engine), routes / "routes.yaml")
        until(lambda: chat("other", url)[0] == 200, 20, "the edit is in force")
        checked([*words, "up", "-d", "--no-build", "--no-deps", "--force-recreate", "gateway"], 200, environ=environ)
        until(lambda: chat("other", url)[0] == 200, 60, "the new container answers")
        assert "main" in usage(), "the volume is kept"
    finally:
        run([*words, "down", "-v", "-t", "5"], 200, environ=environ)


def _edited(routes: Path, engine: int) -> Path:
    new = routes / "new"
    new.write_text(ROUTES.format(host=HOST, port=engine, more=", other: [one]"))
    time.sleep(0.01)
    return new
