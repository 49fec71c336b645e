"""Scripts that start engines."""

from __future__ import annotations

import pytest

from gateway.apps.importing.import_command import STARTS
from tests.apps.importing.support_starts import notes_of, started, started_file
from tests.apps.importing.test_launches import launch_of


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
        ("just vllm serve m", "to_do 1 just: just starts it: not understood"),
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
