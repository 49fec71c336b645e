#!/bin/bash
ENGINE="${ENGINE:-vllm}"
EXTRA=""
if [ -n "${IMAGE_OVERRIDE:-}" ]; then
  IMAGE="$IMAGE_OVERRIDE"
elif [ "${USE_NGC:-0}" = "1" ]; then
  IMAGE=nvcr.io/nvidia/vllm:26.01-py3
else
  IMAGE=example/vllm-node:1
fi
LLAMA=false
case "${1:-next}" in
  next) MODEL=Qwen/Qwen3-Coder-Next-FP8 PARSER=qwen3_coder ;;
  gguf) LLAMA=true ;;
  mini) MODEL=cyankiwi/MiniMax-M2.5-AWQ-4bit PARSER=minimax_m2 EXTRA="--trust-remote-code" ;;
  *) echo "usage: $0 next|mini"; exit 1 ;;
esac
if [ "$LLAMA" = true ]; then
  nohup llama-server -hf x --port 8000 &
  exit 0
fi
docker run -d --name brain --network host --gpus all $IMAGE vllm serve $MODEL --tool-call-parser $PARSER $EXTRA
