"""Launch blocks as operators run them: containers of both kinds, engines of the host, one engine on two nodes."""

from __future__ import annotations

from pathlib import Path

from gateway.apps.fleet.render.files import Rendering
from gateway.apps.fleet.render.rendering import render
from gateway.config.load import load_text
from gateway.config.snapshot import Backend, Launch, Node, Snapshot
from gateway.launch.command import parse
from gateway.launch.docker import read_docker_flags

# What shells, systemd, YAML and docker would each make something of.
ODD = [
    "'",
    '"',
    "\\",
    "$",
    "${",
    "$(id)",
    "`id`",
    "%",
    "%n",
    "!",
    "*",
    "~",
    "#",
    "\n",
    "\t",
    " ",
    "{",
    "}",
    "é",
    "😀",
    "’",
]
DIGEST = "0123456789abcdef" * 4
FLEET = """\
nodes:
  spark1: {address: 192.168.1.11, memory: 119.67GiB, ssh: ops@spark1}
  spark2: {address: 192.168.1.12, memory: 119.67GiB, ssh: spark2}
modes:
  daily: [qwen36, gemma4, small]
  ds4: {backends: [ds4], profiles: {ds4: latency}}
  guide: [card, coder, patched, omni, plugin]
backends:
  qwen36:
    node: spark1
    launch:
      image: nvcr.io/nvidia/vllm:26.04-py3
      command: >-
        vllm serve RedHatAI/Qwen3.6-35B-A3B-NVFP4 --tokenizer Qwen/Qwen3.6-35B-A3B --quantization compressed-tensors
        --kv-cache-dtype fp8 --trust-remote-code --max-model-len 131072 --gpu-memory-utilization 0.55
        --enable-auto-tool-choice --tool-call-parser qwen3_coder --reasoning-parser qwen3
        --speculative-config '{"method":"mtp","num_speculative_tokens":2}' --enable-prefix-caching
        --max-num-batched-tokens 8192 --host 0.0.0.0 --port 8000
      env: {VLLM_FLASHINFER_MOE_BACKEND: latency, VLLM_USE_V1: 1}
      volumes: ["~/.cache/huggingface:/cache"]
      docker: --rm --name vllm-qwen36 --gpus all --ipc=host --ulimit memlock=-1 --ulimit stack=67108864 -p 8001:8000
      resident: 61GiB
  gemma4:
    node: spark2
    launch:
      image: vllm/vllm-openai:gemma4-0505-arm64-cu130
      command: >-
        google/gemma-4-26B-A4B-it --quantization fp8 --kv-cache-dtype fp8 --trust-remote-code --max-model-len 65536
        --gpu-memory-utilization 0.80 --enable-auto-tool-choice --tool-call-parser hermes
        --speculative-config '{"method":"mtp","model":"google/gemma-4-26B-A4B-it-assistant","num_speculative_tokens":4}'
        --enable-prefix-caching --host 0.0.0.0 --max-num-batched-tokens 8192 --port 8001
      env: {VLLM_DISABLE_COMPILE_CACHE: 1, HF_TOKEN: "${HF_TOKEN}"}
      volumes: ["/models:/cache"]
  small:
    node: spark1
    launch:
      command: /opt/vllm/bin/vllm serve Qwen/Qwen3-4B-Instruct-2507 --port 8002 --gpu-memory-utilization 0.10
      env: {HF_HOME: "${MODELS:-/models}", PATH: "/opt/vllm/bin:/usr/bin:/bin"}
  ds4:
    node: [spark1, spark2]
    run: on_demand
    launch:
      image: ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest
      command: >-
        vllm serve /models/DeepSeek-V4-Flash --served-model-name deepseek-v4-flash --host 0.0.0.0 --port 8000
        --trust-remote-code --tensor-parallel-size 2 --pipeline-parallel-size 1 --kv-cache-dtype fp8 --block-size 256
        --enable-prefix-caching --enable-chunked-prefill --max-model-len 131072 --max-num-seqs 8
        --max-num-batched-tokens 16384 --gpu-memory-utilization 0.90 --disable-custom-all-reduce
        --compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}'
        --speculative-config '{"method":"deepseek_mtp","num_speculative_tokens":2}' --tokenizer-mode deepseek_v4
        --tool-call-parser deepseek_v4 --enable-auto-tool-choice --reasoning-parser deepseek_v4
        --default-chat-template-kwargs '{"thinking":true}' --enable-expert-parallel --api-key ${VLLM_API_KEY}
        --master-addr 10.0.0.1
      env:
        {TORCH_CUDA_ARCH_LIST: "12.1a", OMP_NUM_THREADS: 8, NCCL_SOCKET_IFNAME: bond0, GLOO_SOCKET_IFNAME: bond0,
         NCCL_IB_HCA: "rocep1s0f0,rocep1s0f1"}
      volumes: ["/srv/models:/models", "~/.cache/vllm:/cache/vllm"]
      docker: --net host --privileged --runtime nvidia
      resident: 107GiB
    profiles:
      latency: {max-model-len: 200000, max-num-seqs: 4, enable-expert-parallel: none}
  card:
    node: spark1
    launch:
      image: vllm/vllm-openai:nightly@sha256:{DIGEST}
      command: vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 --port 8003 --moe-backend marlin --quantization modelopt
      env: {CUTE_DSL_ARCH: sm_121a, HF_HOME: /models}
      volumes: ["/srv/vllm:/models"]
      docker: -e HF_TOKEN --log-driver journald
  coder:
    node: spark1
    launch:
      image: vllm/vllm-openai:cu130-nightly
      command: python3 -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-Coder-Next-FP8 --port 8004
      docker: --shm-size 32gb --network host
  patched:
    node: spark2
    launch:
      image: vllm/vllm-openai:gemma4-cu130
      command: --model /models/gemma4 --served-model-name gemma-4-26b gemma --port 8005 --moe-backend marlin
      volumes: ["/srv/gemma4:/models/gemma4", "/srv/gemma4/gemma4_patched.py:/vllm/gemma4.py:ro"]
  omni:
    node: spark2
    launch:
      image: vllm/vllm-openai:v0.20.0
      command: >-
        -c "pip install vllm[audio] && vllm serve nvidia/Nemotron-3-Nano-Omni --port 8006
        --limit-mm-per-prompt '{\\"video\\":1,\\"image\\":1}'"
      docker: --entrypoint /bin/bash --shm-size 16g -p 8006:8006
  plugin:
    node: spark2
    launch:
      image: nvcr.io/nvidia/vllm:25.12.post1-py3
      command: nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4 --port 8007
      resident: 20GiB
aliases: {writer: [qwen36, gemma4, ds4]}
""".replace("{DIGEST}", DIGEST)

RECIPES = sorted((Path(__file__).parents[4] / "deploy" / "recipes").glob("*.yaml"))


def fleet() -> Snapshot:
    return load_text(FLEET, "routes.yaml", {}).snapshot


def fleets() -> dict[str, Snapshot]:
    """This fleet and every recipe that ships, by name."""
    recipes = {path.stem: load_text(path.read_text(), path.name, {}).snapshot for path in RECIPES}
    return {"fleet": fleet(), **recipes}


def one_backend(
    command: str = "",
    *,
    image: str | None = None,
    env: dict[str, str] | None = None,
    volumes: tuple[str, ...] = (),
    docker: str | None = None,
    ssh: str | None = None,
    nodes: int = 1,
    name: str = "it",
    resident: int | None = None,
) -> Snapshot:
    """A fleet of one backend, which is on `nodes` nodes."""
    machines = {f"n{i}": Node(f"n{i}", address=f"10.0.0.{i + 1}", ssh=ssh) for i in range(nodes)}
    container = read_docker_flags(docker)
    parsed = parse(command, image=image, entrypoint=container.entrypoint)
    launch = Launch(image, command, env or {}, volumes, docker, resident, parsed, container)
    return Snapshot({name: Backend(name, nodes=tuple(machines), launch=launch)}, {}, nodes=machines)


def text_of(rendering: Rendering, ending: str, node: str | None = None) -> str:
    """The text of the one file whose path ends so."""
    found = [file for file in rendering.files if file.path.endswith(ending) and node in (None, file.node)]
    assert len(found) == 1, [file.place for file in rendering.files]
    return found[0].text


def messages(rendering: Rendering) -> str:
    return "\n".join(f"{note.severity}: {note.path}: {note.message}" for note in rendering.notes)


__all__ = ["FLEET", "ODD", "fleet", "fleets", "messages", "one_backend", "render", "text_of"]
