"""Units, scripts and compose files that start engines become launch blocks."""

from __future__ import annotations

import pytest

from gateway.apps.importing.import_command import STARTS, format_of, text_format_of
from gateway.apps.importing.source import read_source
from gateway.config.snapshot import Backend, Launch
from tests.apps.importing.support import DATA, Imported
from tests.apps.importing.support_starts import notes_of, started, started_file

FILES = [path.name for path in DATA.glob("*") if path.suffix in (".service", ".sh")] + ["compose.yaml"]


NOTHING = {"vllm-ds4-head.service", "vllm-worker.sh", "ds4-container.sh"}  # they start an engine elsewhere


def launch_of(backend: Backend) -> Launch:
    assert backend.launch is not None
    return backend.launch


@pytest.mark.parametrize("name", sorted(set(FILES) - NOTHING))
def test_every_file_is_loaded_without_a_mistake_in_its_commands(name: str) -> None:
    for backend in started_file(name).snapshot.backends.values():
        if backend.launch is not None:
            errors = [mistake for mistake in backend.launch.parsed.mistakes if mistake.severity == "error"]
            assert (errors, backend.launch.parsed.model is None) == ([], False)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vllm-ds4-head.service", "to_do 10 docker exec: starts something inside of a running container"),
        ("ds4-container.sh", "to_do 7 docker exec: starts something inside of a running container"),
        (
            "ds4-container.sh",
            "left_out 4 docker run: a container of ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest runs",
        ),
        ("vllm-worker.sh", "left_out 3 vllm serve: --headless: the worker"),
    ],
)
def test_what_starts_an_engine_elsewhere_is_told_with_its_line(name: str, words: str) -> None:
    kind = "systemd" if name.endswith("service") else "shell"
    draft = STARTS[kind]((DATA / name).read_text(), name, None)
    assert not draft.backends
    assert any(note.startswith(words) for note in notes_of(kind, (DATA / name).read_text())), draft.notes


@pytest.fixture(scope="module")
def guide() -> Imported:
    return started_file("guide.sh")


def test_every_model_of_the_guide(guide: Imported) -> None:
    ports = {name: backend.url for name, backend in guide.snapshot.backends.items()}
    names = ["qwen36-35b", "qwen36-27b", "qwen3-coder-next", "qwen35-122b", "gemma4-31b", "gemma4-26b", "gemma4-coder"]
    names += ["nemotron-nano", "nemotron-omni"]
    assert ports == {
        **{name: f"http://spark1:{8000 + number}" for number, name in enumerate(names)},
        "dflash": "http://spark1:8000",
        "laguna": "http://spark1:8009",
    }


def test_arrays_variables_and_an_entrypoint_of_its_own(guide: Imported) -> None:
    qwen = launch_of(guide.snapshot.backends["qwen36-35b"])
    assert qwen.volumes == ("~/vllm:/models",)
    assert qwen.docker == "--ipc=host --gpus=all -p 8000:8000"  # what the unit decides is left out
    omni = launch_of(guide.snapshot.backends["nemotron-omni"]).parsed
    assert omni.flags["limit-mm-per-prompt"] == {"video": 1, "image": 1, "audio": 1}
    assert omni.words[:2] == ("/bin/bash", "-c")
    assert launch_of(guide.snapshot.backends["gemma4-26b"]).parsed.model == "/models/gemma4"


def test_an_image_that_decides_its_command_is_a_backend_without_a_launch_block(guide: Imported) -> None:
    dflash = guide.snapshot.backends["dflash"]
    assert (dflash.launch, dflash.model, dflash.context) == (None, "dflash-qwen3.5-27b", 65536)
    assert 'api_key: "${VLLM_API_KEY}"' in guide.text


SECRETS = ("hf_abcdefghijklmnop", "hf_written_out", "sk-written-out", "s3cr3t-value", "hunter2hunter2")


@pytest.mark.parametrize("name", sorted(set(FILES) - NOTHING))
def test_no_secret_of_a_file_is_written_or_told(name: str) -> None:
    found = started_file(name)
    assert not [one for one in SECRETS if one in found.text + str(found.draft.notes)]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("shell", "export HF_TOKEN=s3cr3t-value\nhf auth login --token $HF_TOKEN\nvllm serve m"),
        ("shell", "HF_TOKEN=s3cr3t-value vllm serve m"),
        ("shell", "vllm serve m --api-key s3cr3t-value"),
        ("shell", "vllm serve m --api-key=s3cr3t-value"),
        ("shell", "K=s3cr3t-value; export VLLM_API_KEY=$K; vllm serve m --api-key $VLLM_API_KEY"),
        ("shell", "docker run -e HF_TOKEN=s3cr3t-value vllm/vllm-openai:v1 m --port 8000"),
        ("shell", "export P=http://bob:s3cr3t-value@proxy:3128\nvllm serve m"),
        ("shell", "docker run -eMY_PASSWORD=s3cr3t-value vllm/vllm-openai:v1 m --x s3cr3t-value"),
        ("systemd", "[Service]\nEnvironment='HF_TOKEN=s3cr3t-value' A=b\nExecStart=/opt/vllm serve m"),
        (
            "systemd",
            '[Service]\nEnvironment="VLLM_API_KEY=s3cr3t-value"\nExecStart=/opt/vllm serve m --api-key ${VLLM_API_KEY}',
        ),
        ("compose", "services: {a: {image: vllm/vllm-openai, command: m, environment: [HF_TOKEN=s3cr3t-value]}}"),
        ("compose", "services:\n  a:\n    image: vllm/vllm-openai\n    command: m --api-key ${K:-s3cr3t-value}"),
    ],
)
def test_a_secret_that_is_written_out_becomes_a_variable(kind: str, text: str) -> None:
    found = started(kind, text)
    assert "s3cr3t-value" not in found.text + str(found.draft.notes)
    assert [note.kind for note in found.draft.notes if "is not copied" in note.problem.message] == ["to_do"]


def test_a_key_of_the_engine_is_the_key_of_the_backend() -> None:
    found = started("shell", "vllm serve m --api-key sk-abcdefghij")
    assert "--api-key '${VLLM_API_KEY}'" in found.text
    assert 'api_key: "${VLLM_API_KEY}"' in found.text


def test_without_an_address_a_variable_stands_for_it() -> None:
    found = started("shell", "vllm serve org/Model-NVFP4 --port 8005", "start.sh", None)
    assert 'address: "${SPARK_ADDRESS}"' in found.text
    assert list(found.snapshot.backends) == ["model"]
    note = found.note("nodes")
    assert (note.kind, "--address HOST" in (note.problem.hint or "")) == ("to_do", True)


def test_an_entrypoint_that_is_a_script_is_not_taken_for_a_model() -> None:
    (note,) = notes_of("shell", "docker run --entrypoint /run.sh x/vllm:1 --port 8001")
    assert note.endswith("a container of x/vllm:1 runs '/run.sh --port': no vLLM")


def test_a_port_that_only_the_shell_knows_and_one_that_is_not_published() -> None:
    unknown = started("shell", "vllm serve m --port $PORT")
    assert unknown.note("vllm serve").problem.message == "the port is in a variable"
    assert unknown.snapshot.backends["m"].url == "http://spark1:8000"
    assert "no port is published" in notes_of("shell", "docker run vllm/vllm-openai:v1 m")[0]


def test_two_engines_with_a_key_each_keep_two_keys() -> None:
    text = (
        "docker run -e VLLM_API_KEY=sk-first-key -p 8001:8000 vllm/vllm-openai:v1 a\n"
        "docker run -e VLLM_API_KEY=sk-second-key -p 8002:8000 vllm/vllm-openai:v1 b\n"
        "docker run -e VLLM_API_KEY=sk-first-key -p 8003:8000 vllm/vllm-openai:v1 c\n"
    )
    draft = STARTS["shell"](text, "start.sh", "spark1")
    keys = [(entry.keys["api_key"], entry.keys["launch"]["env"]) for entry in draft.backends.values()]
    first = ("${VLLM_API_KEY}", {"VLLM_API_KEY": "${VLLM_API_KEY}"})
    assert keys == [first, ("${VLLM_API_KEY_2}", {"VLLM_API_KEY": "${VLLM_API_KEY_2}"}), first]


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_recognised(name: str) -> None:
    text = (DATA / name).read_text()
    kind = text_format_of(text) or format_of(read_source(text, name).data)
    assert kind == {"service": "systemd", "yaml": "compose", "sh": "shell"}[name.rsplit(".", 1)[-1]]


@pytest.mark.parametrize("name", ["litellm-config.yaml", "llama-swap.yaml", "olla.yaml"])
def test_yaml_that_holds_a_command_is_still_yaml(name: str) -> None:
    assert text_format_of((DATA / name).read_text()) is None
