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


# -- what the posts run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(FILES) - NOTHING))
def test_every_file_is_loaded_without_a_mistake_in_its_commands(name: str) -> None:
    for backend in started_file(name).snapshot.backends.values():
        if backend.launch is not None:
            errors = [mistake for mistake in backend.launch.parsed.mistakes if mistake.severity == "error"]
            assert (errors, backend.launch.parsed.model is None) == ([], False)


def test_the_unit_of_qwen36() -> None:
    backend = started_file("vllm-qwen36.service", "192.168.1.11").snapshot.backends["qwen36"]
    assert (backend.url, backend.model, backend.context) == (
        "http://192.168.1.11:8001",
        "RedHatAI/Qwen3.6-35B-A3B-NVFP4",
        131072,
    )
    assert (backend.tool_parser, backend.auto_tools, backend.reasoning_parser) == ("qwen3_coder", True, "qwen3")
    launch = launch_of(backend)
    assert launch.image == "nvcr.io/nvidia/vllm:26.04-py3"
    assert launch.parsed.flags["speculative-config"] == {"method": "mtp", "num_speculative_tokens": 2}
    assert launch.env == {"VLLM_FLASHINFER_MOE_BACKEND": "latency", "VLLM_USE_V1": "1", "HF_HOME": "/hf"}
    assert launch.docker == "--gpus=all --ipc=host --ulimit=memlock=-1 --ulimit=stack=67108864 -p 8001:8000"
    assert launch.volumes == ("/home/user/.cache/huggingface:/hf",)


def test_the_unit_of_gemma4_whose_image_serves_itself() -> None:
    backend = started_file("vllm-gemma4.service").snapshot.backends["gemma4"]
    assert (backend.url, backend.context, backend.tool_parser) == ("http://spark1:8001", 65536, "hermes")
    assert launch_of(backend).parsed.program == ()
    assert launch_of(backend).parsed.flags["speculative-config"]["model"] == "google/gemma-4-26B-A4B-it-assistant"


def test_the_head_of_an_engine_on_two_nodes() -> None:
    found = started_file("vllm-head.sh", None)
    backend = found.snapshot.backends["deepseek-v4-flash"]
    assert (backend.nodes, backend.url, backend.slots) == (("spark", "spark-2"), "http://192.168.1.11:8000", 8)
    launch = launch_of(backend)
    assert launch.image is None
    assert launch.env["NCCL_SOCKET_IFNAME"] == launch.env["GLOO_SOCKET_IFNAME"] == "bond0"
    assert launch.parsed.flags["compilation-config"] == {"cudagraph_mode": "FULL_AND_PIECEWISE", "custom_ops": ["all"]}
    assert 'address: "${SPARK_2_ADDRESS}"' in found.text


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


def test_a_compose_key_without_a_value_is_no_flag() -> None:
    keys = "ipc: null, shm_size: , ulimits: {nofile: null, memlock: {soft: -1, hard: null}}"
    text = f"services: {{a: {{image: vllm/vllm-openai, command: m, {keys}}}}}"
    (found,) = started("compose", text).snapshot.backends.values()
    assert launch_of(found).docker == "--ulimit=memlock=-1"


@pytest.mark.parametrize(
    ("port", "flag"),
    [
        ("target: 8000, published: 8001, host_ip: 127.0.0.1", "-p 127.0.0.1:8001:8000"),
        ("target: 8000, published: 8001, host_ip: '::1'", "-p '[::1]:8001:8000'"),
        ("target: 8000, published: '8001', protocol: tcp", "-p 8001:8000"),
        ("target: 8000, published: 8001, protocol: udp", "-p 8001:8000/udp"),
    ],
)
def test_a_port_stays_bound_to_its_address(port: str, flag: str) -> None:
    text = f"services: {{a: {{image: vllm/vllm-openai, command: m, ports: [{{{port}}}]}}}}"
    (found,) = started("compose", text).snapshot.backends.values()
    assert launch_of(found).docker == flag


def test_a_compose_file() -> None:
    found = started_file("compose.yaml")
    writer, reviewer = found.snapshot.backends["writer"], found.snapshot.backends["reviewer"]
    assert list(found.snapshot.backends) == ["writer", "reviewer"]
    assert (writer.url, writer.context, writer.slots, writer.tool_parser) == ("http://spark1:8001", 32768, 2, "hermes")
    assert launch_of(writer).image == "vllm/vllm-openai:v0.23.0"
    assert launch_of(writer).volumes == ("~/vllm:/models", "/srv/templates:/templates:ro")
    assert launch_of(writer).docker == (
        "--ipc=host --ulimit=memlock=-1 --ulimit=stack=67108864:67108864 --shm-size=16g --gpus=all -p 8001:8000"
    )
    assert (reviewer.url, launch_of(reviewer).env["HF_TOKEN"]) == ("http://spark1:8002", "${HF_TOKEN}")
    assert found.note("services.writer.environment.HF_TOKEN").problem.line == 17
    assert found.note("services.ollama").kind == "left_out"


# -- secrets ----------------------------------------------------------------------------------------------------------

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


# -- addresses --------------------------------------------------------------------------------------------------------


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


# -- the ways of writing it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve org/m --port 8001 --max-model-len 4096",
        "exec vllm serve org/m --port=8001 --max-model-len=4096",
        "nohup /opt/venv/bin/vllm serve org/m --port 8001 --max-model-len 4096 > /tmp/log 2>&1 &",
        'PORT=8001\nLEN=4096\nvllm serve org/m --port $PORT --max-model-len "${LEN}"',
        "ARGS='--port 8001 --max-model-len 4096'\nvllm serve org/m $ARGS",
        'ARGS=(--port 8001)\nARGS+=(--max-model-len 4096)\nvllm serve org/m "${ARGS[@]}"',
        "if true; then\n  vllm serve org/m --port 8001 \\\n    --max-model-len 4096\nfi",
        'Z=$(nvidia-smi | \\\n  while read p; do echo $p; done)\nif [ -n "$Z" ]; then exit 1; fi\nA=1 \\\nB=2 \\\n'
        "vllm serve org/m \\\n --port 8001 --max-model-len 4096",
        "bash -c 'cd /x && vllm serve org/m --port 8001 --max-model-len 4096'",
        "sudo -E env A=1 vllm serve org/m --port 8001 --max-model-len 4096 # comment",
        "cat > x <<EOF\nvllm serve other --port 1\nEOF\nvllm serve org/m --port ${P:-8001} --max-model-len 4096",
        "python3 -m vllm.entrypoints.openai.api_server --model org/m --port 8001 --max-model-len 4096",
        "docker run --name m -p 8001:8000 vllm/vllm-openai:v1 org/m --max-model-len 4096",
        'MODEL=${1:-"org/m"}\nvllm serve "$MODEL" --port ${P:-\'8001\'} --max-model-len "${LEN:="4096"}"',
    ],
)
def test_every_way_of_starting_it_in_a_script(text: str) -> None:
    (backend,) = started("shell", text).snapshot.backends.values()
    assert (backend.url, backend.context, backend.model) == ("http://spark1:8001", 4096, "org/m")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("for i in 1 2; do vllm serve m; done", "to_do 1 for: not followed"),
        ("uv run vllm serve m", "to_do 1 uv: uv starts it: not understood"),
        ("vllm serve <HF_MODEL> --port 8000", "to_do 1 vllm serve: the model is not said"),
        ("docker compose -f /x/compose.yaml up -d", "to_do 1 docker: starts a compose file"),
        ("./start.sh", "to_do 1 ./start.sh: starts a script of its own"),
        ("bash /opt/start.sh", "to_do 1 /opt/start.sh: starts a script of its own"),
        ("docker run --gpuss=all vllm/vllm-openai:v1 m", "to_do 1 docker run: docker has no flag --gpuss"),
        ("docker run --env-file x vllm/vllm-openai:v1 m", "to_do 1 docker run: the variables of an --env-file"),
        (
            "docker run -u $(id -u) vllm/vllm-openai:v1 m",
            "to_do 1 docker run: --user has a value that a shell computes",
        ),
        ("export A=1 B=$(id -u)\nvllm serve m", "to_do 2 vllm serve: B has a value that a shell computes"),
        ("docker run -e A=`id` vllm/vllm-openai:v1 m", "to_do 1 docker run: A has a value that a shell computes"),
        ("vllm serve m --seed $(date +%s)", "to_do 1 vllm serve: --seed has a value that a shell computes"),
        (
            "docker run -v $(pwd)/m:/m vllm/vllm-openai:v1 m",
            "to_do 1 docker run: volume $(pwd)/m:/m has a value that a shell computes",
        ),
        ("docker run -v $PWD/m:/m vllm/vllm-openai:v1 m", "to_do 1 docker run: volume ${PWD}/m:/m is relative"),
        ("docker run -v ./m:/m vllm/vllm-openai:v1 m", "to_do 1 docker run: volume ./m:/m is relative"),
        ('if [ "$1" = a ]; then N=1\nelse N=2; fi\nvllm serve m --max-num-seqs $N', "to_do 1 if[1]: not followed"),
        ("set -e\nif x; then\n  if y; then vllm serve m; fi\nfi", "to_do 3 if[3]: not followed"),
        (
            "docker run -p 8080:8080 ghcr.io/ggml-org/llama.cpp:server-cuda -m /m.gguf -np 4 --port 8080",
            "left_out 1 docker run: a container of ghcr.io/ggml-org/llama.cpp:server-cuda runs '-m /m.gguf': no vLLM",
        ),
        ("vllm serve m --max-model-length 8", "to_do 1 vllm serve: "),
        ("\n\npip install vllm", "left_out 3 pip: `pip install` is no part of a launch"),
    ],
)
def test_what_is_not_understood_is_noted_with_its_line(text: str, words: str) -> None:
    assert any(note.startswith(words) for note in notes_of("shell", text)), notes_of("shell", text)


def test_a_condition_around_other_commands_is_not_noted() -> None:
    text = "if docker ps | grep -q m; then docker rm -f m; fi\nvllm serve m"
    assert [note for note in notes_of("shell", text) if " if" in note] == []


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


@pytest.mark.parametrize(
    ("top", "volume"),
    [
        ("name: fleet\nvolumes: {hf: }", "fleet_hf:/hf"),
        ("volumes: {hf: {name: weights}}", "weights:/hf"),
        ("volumes: {hf: {external: true}}", "hf:/hf"),
        ("volumes: {hf: {}}", "hf:/hf"),
    ],
)
def test_a_volume_of_a_compose_file_has_the_name_that_docker_knows(top: str, volume: str) -> None:
    service = "{image: 'vllm/vllm-openai:v1', command: m, ports: ['8001:8000'], volumes: ['hf:/hf']}"
    text = f"{top}\nservices:\n  m: {service}\n"
    (backend,) = started("compose", text).snapshot.backends.values()
    assert launch_of(backend).volumes == (volume,)
    told = [note for note in notes_of("compose", text) if "as PROJECT_hf" in note]
    assert bool(told) == (top == "volumes: {hf: {}}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[Service]\nType=exec\nWorkingDirectory=/opt\nExecStart=/opt/vllm serve m",
            "left_out 3 WorkingDirectory: is not taken over",
        ),
        ("[Service]\nUser=vllm\nExecStart=/opt/vllm serve m", "left_out 2 User: is not taken over"),
        (
            "[Service]\nEnvironmentFile=-/etc/x\nExecStart=/opt/vllm serve m",
            "to_do 2 EnvironmentFile: the variables of /etc/x",
        ),
        ("[Service]\nExecStart=/opt/start.sh", "to_do 2 /opt/start.sh: starts a script of its own"),
        ("[Service]\nExecStart=/opt/vllm serve m --port 80%i", "to_do 2 ExecStart: a specifier of systemd"),
        (
            "[Service]\nExecStartPre=/usr/bin/mount /x\nExecStart=/opt/vllm serve m",
            "left_out 2 ExecStartPre: this step",
        ),
        ("[Service]\nExecStart=/opt/vllm serve 'm", "to_do 2 ExecStart: a quote is never closed"),
    ],
)
def test_what_a_unit_has_besides_is_noted_with_its_line(text: str, words: str) -> None:
    assert any(note.startswith(words) for note in notes_of("systemd", text)), notes_of("systemd", text)


def test_a_units_variables_are_the_engines() -> None:
    text = '[Service]\nEnvironment="A=b c" PORT=8004\nExecStart=/opt/vllm serve m --port ${PORT}\n'
    backend = started("systemd", text).snapshot.backends["m"]
    assert (launch_of(backend).env, backend.url) == ({"A": "b c", "PORT": "8004"}, "http://spark1:8004")


# -- which format it is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_recognised(name: str) -> None:
    text = (DATA / name).read_text()
    kind = text_format_of(text) or format_of(read_source(text, name).data)
    assert kind == {"service": "systemd", "yaml": "compose", "sh": "shell"}[name.rsplit(".", 1)[-1]]


@pytest.mark.parametrize("name", ["litellm-config.yaml", "llama-swap.yaml", "olla.yaml"])
def test_yaml_that_holds_a_command_is_still_yaml(name: str) -> None:
    assert text_format_of((DATA / name).read_text()) is None


@pytest.mark.parametrize(
    ("words", "image"),
    [
        ("$IMAGE_NAME vllm serve org/m --port 8001", "${IMAGE_NAME}"),
        ("${VLLM_IMAGE} --model org/m --port 8001", "${VLLM_IMAGE}"),
        ('"$A" "$B" vllm/vllm-openai:v1 --model org/m', "vllm/vllm-openai:v1"),
        ("$FOO -p 1:8000 vllm/vllm-openai:v1 --model org/m", "vllm/vllm-openai:v1"),
        ("$FOO vllm serve org/m --port 8001", None),
        ("$FOO $BAR --model org/m", None),
    ],
)
def test_which_word_is_the_image(words: str, image: str | None) -> None:
    draft = STARTS["shell"](f"docker run --gpus all --network host {words}", "start.sh", "spark1")
    assert [entry.keys["launch"]["image"] for entry in draft.backends.values()] == ([] if image is None else [image])
