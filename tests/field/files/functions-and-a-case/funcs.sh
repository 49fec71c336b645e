#!/usr/bin/env bash
set -euo pipefail
readonly IMG="vllm/vllm-openai:v0.23.0"
BASE_ARGS=(
  --gpus all
  --ipc=host
  # keep the cache
  -v "$HOME/.cache/huggingface:/hf/.cache/huggingface"
)
log() { echo "[$(date +%H:%M)] $*"; }
start_model() {
  local name="$1" model="$2" port="$3"
  shift 3
  log "starting $name"
  docker rm -f "$name" >/dev/null 2>&1 || true
  docker run -d --name "$name" "${BASE_ARGS[@]}" -p "${port}:8000" "$IMG" --model "$model" "$@"
}
wait_for() { until curl -sf "http://localhost:$1/health"; do sleep 5; done; }
case "${1:-all}" in
  small) start_model vllm-small Qwen/Qwen3-4B 8001 --max-model-len 8192 ;;
  big)   start_model vllm-big Qwen/Qwen3.6-35B-A3B-FP8 8002 --max-model-len 131072 ${BIG_ARGS:-} ;;
  all)   start_model vllm-small Qwen/Qwen3-4B 8001 && wait_for 8001
         start_model vllm-big Qwen/Qwen3.6-35B-A3B-FP8 8002 ;;
  stop)  docker stop vllm-small vllm-big ;;
  *) echo "usage: $0 {small|big|all|stop}"; exit 1 ;;
esac
