#!/bin/bash
set -e
IMAGE_NAME="vllm-node"
CONTAINER_NAME="vllm_node"
DETACH=""
PORT=8000
while [[ "$#" -gt 0 ]]; do
  case $1 in
    -t) IMAGE_NAME="$2"; shift ;;
    --name) CONTAINER_NAME="$2"; shift ;;
    -d) DETACH="-d" ;;
    -h|--help) usage; exit 0 ;;
    *) break ;;
  esac
  shift
done
DOCKER_ARGS=(--privileged --gpus all -it --rm --network host --ipc=host)
if [[ -n "$HF_TOKEN" ]]; then
  DOCKER_ARGS+=(-e "HF_TOKEN=$HF_TOKEN")
fi
docker run "${DOCKER_ARGS[@]}" $DETACH --name "$CONTAINER_NAME" \
  -v ~/.cache/huggingface:/hf/.cache/huggingface \
  "$IMAGE_NAME" bash -c "vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct-FP8 \
     --port $PORT --host 0.0.0.0 \
     --gpu-memory-utilization 0.7 --max-model-len 32768"
