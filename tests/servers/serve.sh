#!/usr/bin/env bash
# One real server on 127.0.0.1:PORT with the taught model, in the foreground. usage: serve.sh llama|mlx|transformers PORT [flags]
# ENGINES: the folder that install.sh made (default .venv-engines in the repository).
# e.g.   tests/servers/serve.sh llama 8001 -c 4096 --alias qwen3-taught --metrics
#        tests/servers/serve.sh mlx 8002 --model mlx-community/Qwen3-0.6B-4bit
#        tests/servers/serve.sh transformers 8003 mlx-community/Qwen3-0.6B-4bit
set -euo pipefail
what=${1:?usage: serve.sh llama|mlx|transformers PORT [flags]} port=${2:?PORT}
shift 2
cd "${ENGINES:-$(dirname "$0")/../../.venv-engines}"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_HOME=${HF_HOME:-$PWD/hf} OMP_NUM_THREADS=1
model=(-m taught.gguf)
[ -z "${ROUTER:-}" ] || model=()         # llama-server that loads models by itself: its flags say which
case $what in
  llama) exec build/bin/llama-server ${model[@]+"${model[@]}"} --host 127.0.0.1 --port "$port" -t 1 "$@" ;;
  mlx) exec venv-mlx/bin/mlx_lm.server --host 127.0.0.1 --port "$port" "$@" ;;
  transformers) exec venv-tools/bin/transformers serve --host 127.0.0.1 --port "$port" --device cpu "$@" ;;
  *) echo "serve.sh: llama, mlx or transformers, not $what" >&2; exit 2 ;;
esac
