#!/usr/bin/env bash
# Every model of the guide to vLLM on a Spark, as its operator would keep it in one script.
set -euo pipefail
export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz
MODELS=~/vllm
COMMON=(--ipc=host --restart unless-stopped --gpus all -e HF_HOME=/models -v "$MODELS:/models")
mkdir -p "$MODELS"
pip install -U "huggingface_hub[cli]"
hf download nvidia/Qwen3.6-35B-A3B-NVFP4

docker run -d --name qwen36-35b "${COMMON[@]}" -p 8000:8000 -e HF_TOKEN="$HF_TOKEN" \
  -e FLASHINFER_DISABLE_VERSION_CHECK=1 -e CUTE_DSL_ARCH=sm_121a \
  vllm/vllm-openai:nightly nvidia/Qwen3.6-35B-A3B-NVFP4 --port 8000 --tensor-parallel-size 1 \
  --trust-remote-code --dtype auto --quantization modelopt --kv-cache-dtype fp8 --moe-backend marlin \
  --gpu-memory-utilization 0.85 --max-model-len 65536 --max-num-seqs 4 --max-num-batched-tokens 8192 \
  --enable-chunked-prefill --async-scheduling --enable-prefix-caching \
  --speculative-config '{"method":"mtp","num_speculative_tokens":3,"moe_backend":"triton"}' \
  --reasoning-parser qwen3 --enable-auto-tool-choice --tool-call-parser qwen3_xml

docker run -d --name qwen36-27b "${COMMON[@]}" -p 8001:8000 vllm/vllm-openai:nightly \
  unsloth/Qwen3.6-27B-NVFP4 --trust-remote-code --dtype bfloat16 --gpu-memory-utilization 0.85 \
  --max-model-len 65536 --max-num-seqs 4 --reasoning-parser qwen3

docker run -d --name qwen3-coder-next "${COMMON[@]}" --shm-size 32gb -p 8002:8000 \
  vllm/vllm-openai:cu130-nightly Qwen/Qwen3-Coder-Next-FP8 --served-model-name qwen3-coder-next \
  --host 0.0.0.0 --port 8000 --attention-backend flashinfer --enable-prefix-caching \
  --enable-auto-tool-choice --tool-call-parser qwen3_coder --gpu-memory-utilization 0.85 \
  --max-model-len 170000 --max-num-seqs 4 --max-num-batched-tokens 32768

docker run -d --name qwen35-122b "${COMMON[@]}" --shm-size 32gb -p 8003:8000 \
  vllm/vllm-openai:cu130-nightly RedHatAI/Qwen3.5-122B-A10B-NVFP4 --served-model-name qwen3.5-122b \
  --host 0.0.0.0 --port 8000 --trust-remote-code --moe-backend marlin --reasoning-parser qwen3 \
  --enable-auto-tool-choice --tool-call-parser qwen3_coder --enable-prefix-caching \
  --gpu-memory-utilization 0.85 --max-model-len 65536 --max-num-seqs 4 --max-num-batched-tokens 8192

docker run -d --name gemma4-31b "${COMMON[@]}" -p 8004:8000 -e HF_TOKEN \
  vllm/vllm-openai:gemma4-cu130 nvidia/Gemma-4-31B-IT-NVFP4 --quantization modelopt \
  --tensor-parallel-size 1 --gpu-memory-utilization 0.85 --max-model-len 65536 --max-num-seqs 4

docker run -d --name gemma4-26b --ipc=host --restart unless-stopped --gpus all -p 8005:8000 \
  -v ~/vllm/gemma4-26b-a4b-nvfp4:/models/gemma4 \
  -v ~/vllm/gemma4-26b-a4b-nvfp4/gemma4_patched.py:/usr/local/lib/python3.12/dist-packages/vllm/model_executor/models/gemma4.py \
  vllm/vllm-openai:gemma4-cu130 --model /models/gemma4 --served-model-name gemma-4-26b \
  --quantization modelopt --moe-backend marlin --trust-remote-code --kv-cache-dtype fp8 \
  --max-model-len 65536 --gpu-memory-utilization 0.85 --max-num-seqs 4 --reasoning-parser gemma4 \
  --enable-auto-tool-choice --tool-call-parser pythonic

docker run -d --name gemma4-coder --ipc=host --shm-size 16gb --restart unless-stopped --gpus all \
  -p 8006:8000 -v ~/vllm/gemma4-coder:/model:ro vllm/vllm-openai:nightly \
  --model /model --served-model-name gemma4-coder --max-model-len 16384 \
  --gpu-memory-utilization 0.92 --trust-remote-code --kv-cache-dtype fp8 \
  --speculative-config '{"method":"mtp","model":"/model/assistant","num_speculative_tokens":3}'

wget -P ~/vllm https://huggingface.co/nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4/resolve/main/nano_v3_reasoning_parser.py
docker run -d --name nemotron-nano "${COMMON[@]}" -p 8007:8000 -e HF_TOKEN="$HF_TOKEN" \
  -e VLLM_USE_FLASHINFER_MOE_FP4=1 -e VLLM_FLASHINFER_MOE_BACKEND=throughput \
  nvcr.io/nvidia/vllm:25.12.post1-py3 vllm serve nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4 \
  --served-model-name nemotron-3-nano --port 8000 --tensor-parallel-size 1 --trust-remote-code \
  --max-model-len 262144 --max-num-seqs 8 --gpu-memory-utilization 0.85 --kv-cache-dtype fp8 \
  --enable-auto-tool-choice --tool-call-parser qwen3_coder \
  --reasoning-parser-plugin /models/nano_v3_reasoning_parser.py --reasoning-parser nano_v3

docker run -d --name nemotron-omni "${COMMON[@]}" --shm-size 16g -p 8008:8000 -e HF_TOKEN="$HF_TOKEN" \
  --entrypoint /bin/bash vllm/vllm-openai:v0.20.0 -c \
  "pip install vllm[audio] && vllm serve nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-NVFP4 \
  --served-model-name nemotron-omni --host 0.0.0.0 --port 8000 --trust-remote-code \
  --gpu-memory-utilization 0.8 --max-model-len 131072 --max-num-seqs 8 --max-num-batched-tokens 32768 \
  --limit-mm-per-prompt '{\"video\":1,\"image\":1,\"audio\":1}' --allowed-local-media-path=/ \
  --media-io-kwargs '{\"video\":{\"fps\":2,\"num_frames\":256}}' \
  --reasoning-parser nemotron_v3 --enable-auto-tool-choice --tool-call-parser qwen3_coder"

export VLLM_API_KEY=$(openssl rand -hex 32)
docker run -d --name vllm-dflash --runtime nvidia --network host --ipc host --ulimit memlock=-1:-1 \
  -v ~/vllm/target:/models/target:ro -e MODEL_PATH=/models/target \
  -e SERVED_MODEL_NAME=dflash-qwen3.5-27b -e DFLASH_DRAFTER=z-lab/Qwen3.5-27B-DFlash \
  -e DFLASH_NUM_SPEC_TOKENS=15 -e MAX_MODEL_LEN=65536 -e VLLM_API_KEY="$VLLM_API_KEY" \
  ghcr.io/aeon-7/vllm-dflash:latest

docker run -d --name laguna "${COMMON[@]}" -p 8009:8000 -e HF_TOKEN="$HF_TOKEN" -e VLLM_USE_DEEP_GEMM=0 \
  vllm/vllm-openai:nightly poolside/Laguna-XS.2 --trust-remote-code --enable-auto-tool-choice \
  --tool-call-parser poolside_v1 --reasoning-parser poolside_v1 \
  --speculative-config '{"model":"poolside/Laguna-XS.2-speculator.dflash","num_speculative_tokens":7,"method":"dflash"}'

docker run --rm vllm/vllm-openai:nightly vllm --version   # at least 0.21.0 for DFlash
curl -s http://localhost:8000/v1/models
