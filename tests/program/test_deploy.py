"""What deploy/ ships fits the gateway and itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from ruamel.yaml import YAML

from gateway import __version__
from gateway.config.load import load_text
from gateway.config.units import parse_duration
from tests.machines.pages import ALONE, NOT_RUN, OWN, PAGES, STEPS, commands, steps

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE_FILE = DEPLOY / "docker-compose.yml"
UNIT = (DEPLOY / "spark-gateway.service").read_text()
SERVER = load_text((ROOT / "routes.yaml").read_text(), "routes.yaml", {}).snapshot.server


def yaml_of(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text())


COMPOSE: dict[str, Any] = yaml_of(COMPOSE_FILE)
SERVICES: dict[str, Any] = COMPOSE["services"]


def setting(name: str) -> list[str]:
    """The values of a setting of the systemd unit."""
    return re.findall(rf"^{name}=(.*)$", UNIT, re.M)


# -- image ------------------------------------------------------------------------------------------------------------


def copied() -> list[str]:
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.M)
    return [source for line in lines for source in line.split()[:-1]]


def test_the_dockerfile_copies_only_what_exists_and_what_the_build_may_see() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert copied()
    for source in copied():
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignore, f".dockerignore hides {source}"


def test_the_package_is_built_from_what_the_dockerfile_copies(tmp_path: Path) -> None:
    """A wheel, built without a network in a folder that holds only the files that the build of the image sees."""
    for source in copied():
        target = tmp_path / "src" / source
        target.parent.mkdir(parents=True, exist_ok=True)
        leave_out = shutil.ignore_patterns("__pycache__")
        copy = partial(shutil.copytree, ignore=leave_out) if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, target)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    built = subprocess.run(
        [*command, "--wheel-dir", str(tmp_path), str(tmp_path / "src")], capture_output=True, text=True, timeout=100
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = ZipFile(wheel).namelist()
    for name in ("gateway/routes.yaml", "gateway/web/index.html", "simulator/fleet.py"):
        assert name in names
    recipes = {f"gateway/recipes/{path.name}" for path in (DEPLOY / "recipes").iterdir() if path.is_file()}
    assert recipes <= set(names)


def test_no_secret_and_no_state_is_seen_by_the_build() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignore
    assert not {"!.env", "!state", "!.git"} & set(ignore)


def test_the_image_is_built_from_the_lock_and_runs_as_nobody_in_particular() -> None:
    assert "\nARG EXTRA=\n" in DOCKERFILE
    assert "--require-hashes -r requirements$EXTRA.lock" in DOCKERFILE
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    user = re.search(r"^USER (\d+):\d+$", final, re.M)
    assert user is not None
    assert int(user[1]) > 0
    assert f"EXPOSE {SERVER.port}" in final
    assert f"http://127.0.0.1:{SERVER.port}/health" in final
    assert "MALLOC_MMAP_THRESHOLD_" in final


def bases() -> list[str]:
    """The images that the Dockerfile starts from, its build arguments replaced by their defaults."""
    stages = set(re.findall(r" AS (\w+)", DOCKERFILE))
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", DOCKERFILE.partition("\nFROM ")[0], re.M))
    named = [image for image in re.findall(r"^FROM (\S+)", DOCKERFILE, re.M) if image not in stages]
    return [re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], image) for image in named]


def test_the_bases_of_the_image_are_pinned_by_digest_and_are_the_same() -> None:
    assert len(bases()) == 2
    assert len(set(bases())) == 1
    assert re.fullmatch(r"python:3\.\d+-slim@sha256:[0-9a-f]{64}", bases()[0])


def test_images_are_pinned_by_tag() -> None:
    for image in [*bases(), *(service["image"] for service in SERVICES.values())]:
        tag = image.rpartition("/")[2].partition(":")[2]
        assert tag, image
        assert tag not in ("latest", "main"), image


def test_the_image_has_the_version_of_the_package() -> None:
    images = re.findall(
        r"spark-gateway:([\d.]+\d)", COMPOSE_FILE.read_text() + DOCKERFILE + (ROOT / "docs/deploy.md").read_text()
    )
    assert set(images) == {__version__}


# -- compose ----------------------------------------------------------------------------------------------------------


def compose() -> list[str] | None:
    """The compose command of this machine: docker's plugin, or the older program of its own."""
    docker, older = shutil.which("docker"), shutil.which("docker-compose")
    if docker is not None and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0:
        return [docker, "compose"]
    return [older] if older is not None else None


def test_the_compose_file_is_one_that_compose_takes() -> None:
    command = compose()
    if command is None:
        pytest.skip("no `docker compose` here; the other tests read the file as YAML")
    checked = subprocess.run(
        [*command, "-f", str(COMPOSE_FILE), "config", "--quiet"], cwd=DEPLOY, capture_output=True, text=True, timeout=30
    )
    assert checked.returncode == 0, checked.stderr


def test_compose_uses_no_key_that_docker_compose_1_29_refuses_and_no_limit_that_a_daemon_may() -> None:
    assert set(COMPOSE) == {"services", "volumes"}
    assert not [name for name, service in SERVICES.items() if "ulimits" in service]


def test_the_volumes_are_the_same_whatever_the_project_is_called() -> None:
    assert {name: volume["name"] for name, volume in COMPOSE["volumes"].items()} == {
        name: f"spark-gateway_{name}" for name in ("gateway-state", "open-webui", "prometheus", "grafana")
    }


def test_the_services_are_there_and_what_they_name_exists() -> None:
    assert set(SERVICES) == {"gateway", "redis", "open-webui", "prometheus", "grafana"}
    build = SERVICES["gateway"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    volumes = [volume for service in SERVICES.values() for volume in service.get("volumes", [])]
    for volume in volumes:
        source = volume.rpartition(":/")[0]
        if source.startswith("."):
            assert (DEPLOY / source).exists(), volume
        elif not source.startswith("$"):
            assert source in COMPOSE["volumes"], volume
    for service in SERVICES.values():
        assert set(service.get("depends_on", [])) <= set(SERVICES)


def test_the_gateway_gets_its_routes_read_only_and_time_to_finish_its_streams() -> None:
    gateway = SERVICES["gateway"]
    assert "${ROUTES:-./routes}:/etc/gateway:ro" in gateway["volumes"], "a folder: an edit may replace the file"
    assert "GATEWAY_CONFIG=/etc/gateway/routes.yaml" in DOCKERFILE
    assert "COPY routes.yaml /etc/gateway/routes.yaml" in DOCKERFILE
    load_text((DEPLOY / "routes/routes.yaml").read_text(), "routes.yaml", {})
    assert parse_duration(gateway["stop_grace_period"]) > SERVER.shutdown
    assert gateway["ports"] == [f"${{GATEWAY_BIND:-127.0.0.1}}:{SERVER.port}:{SERVER.port}"]


def test_of_the_host_the_gateway_sees_its_routes_and_nothing_else() -> None:
    gateway = SERVICES["gateway"]
    mounts = [volume.rpartition(":/")[0] for volume in gateway["volumes"]]
    assert mounts == ["${ROUTES:-./routes}", "gateway-state"]
    assert [file.name for file in (DEPLOY / "routes").iterdir()] == ["routes.yaml"]
    assert gateway["read_only"] is True
    assert gateway["cap_drop"] == ["ALL"]
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source, _, target = volume.rpartition(":/")
            assert source in COMPOSE["volumes"] or target.endswith(":ro"), volume
            assert "docker.sock" not in volume


def test_everything_is_published_on_this_host_alone_unless_it_is_told_otherwise() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(published) == 4
    for port in published:
        assert re.match(r"127\.0\.0\.1:|\$\{\w+_BIND:-127\.0\.0\.1\}:", port), port


def test_the_files_that_compose_names_by_default_are_there_and_hold_no_secret() -> None:
    text = COMPOSE_FILE.read_text()
    for default in re.findall(r"\$\{(?:GATEWAY_ENV|METRICS_KEY_FILE):-([^}]+)\}", text):
        assert (DEPLOY / default).is_file(), default
    assert (DEPLOY / "metrics-key").read_text().strip() == "none"
    assert not [line for line in (DEPLOY / "gateway.env").read_text().splitlines() if not line.startswith("#")]


def test_the_gateway_has_an_end_to_its_memory() -> None:
    assert SERVICES["gateway"]["mem_limit"] == "4g"
    assert setting("MemoryMax") == ["4G"]


def test_open_webui_talks_to_the_gateway_alone() -> None:
    environment = SERVICES["open-webui"]["environment"]
    assert environment["OPENAI_API_BASE_URL"] == f"http://gateway:{SERVER.port}/v1"
    assert environment["OPENAI_API_KEY"]
    assert environment["ENABLE_OLLAMA_API"] == "false"


# -- metrics ----------------------------------------------------------------------------------------------------------


def test_prometheus_scrapes_the_gateway_where_it_listens() -> None:
    jobs = {job["job_name"]: job for job in yaml_of(DEPLOY / "prometheus.yml")["scrape_configs"]}
    assert jobs["gateway"]["metrics_path"] == "/metrics"
    assert jobs["gateway"]["static_configs"] == [{"targets": [f"gateway:{SERVER.port}"]}]


def test_prometheus_has_a_key_for_metrics_that_take_one() -> None:
    (job,) = [job for job in yaml_of(DEPLOY / "prometheus.yml")["scrape_configs"] if job["job_name"] == "gateway"]
    file = job["authorization"]["credentials_file"]
    assert job["authorization"]["type"] == "Bearer"
    assert f"${{METRICS_KEY_FILE:-./metrics-key}}:{file}:ro" in SERVICES["prometheus"]["volumes"]


def test_grafana_finds_prometheus() -> None:
    (source,) = yaml_of(DEPLOY / "grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["type"] == "prometheus"
    assert source["url"] == "http://prometheus:9090"


# -- systemd ----------------------------------------------------------------------------------------------------------


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("no systemd-analyze here")
    unit = tmp_path / "spark-gateway.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT, flags=re.M))  # it must exist to be verified
    checked = subprocess.run([verify, "verify", str(unit)], capture_output=True, text=True, timeout=60)
    said = [line for line in checked.stderr.splitlines() if "spark-gateway" in line]
    assert (checked.returncode, said) == (0, []), checked.stderr


def test_the_unit_serves_with_few_rights_and_waits_for_the_streams() -> None:
    (start,) = setting("ExecStart")
    assert re.search(r"/gateway serve --takeover --config \S+/routes\.yaml$", start)
    assert float(setting("TimeoutStopSec")[0]) > SERVER.shutdown
    for line in ("DynamicUser=yes", "ProtectSystem=strict", "NoNewPrivileges=yes", "StateDirectory=spark-gateway"):
        assert f"\n{line}\n" in UNIT, line


# -- commands ---------------------------------------------------------------------------------------------------------


def test_every_command_of_the_operators_pages_is_run_on_machines_or_says_why_not() -> None:
    """tests/machines runs them; a command that is new on a page is named there."""
    shown = [command for page in PAGES for block in commands(page) for command in block]
    assert len(shown) > 40
    named = {OWN, *ALONE, *NOT_RUN, *(command for name in STEPS for command in steps(name))}
    assert [command for command in shown if command not in named] == []
    assert [command for command in named if command not in shown] == []
    tests = "".join(path.read_text() for path in (ROOT / "tests/machines").glob("*.py"))
    assert [name for name in STEPS if f'steps("{name}")' not in tests] == []
