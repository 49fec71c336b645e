#!/usr/bin/env bash
# A real `vllm serve` on 127.0.0.1:PORT with a tiny random model that can be told what to say (tinyscript.py).
# usage: VENV=... serve.sh PORT [extra vllm serve flags...]      foreground; start-up 25-60 s, ~2.7 GB; stop it with TERM
# FRONT_ENDS=1: one engine with a front end for each pair of parsers (front_ends.py)
# UNSCRIPTED=1: the model says what it likes; vLLM drafts (--speculative-config) only without the script
# e.g.   VENV=.venv-vllm tests/vllm/serve.sh 8001 --enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd); V=${VENV:?set VENV to what install.sh made}; PORT=$1; shift
MODEL=${MODEL_DIR:-$V/tiny-model}
if [ ! -f "$MODEL/config.json" ]; then                # made aside, so that two servers that start together both find it whole
  "$V/bin/python" "$HERE/make_tiny_model.py" "$MODEL.$$"
  mv -T "$MODEL.$$" "$MODEL" || rm -rf "$MODEL.$$"
fi
export VLLM_TARGET_DEVICE=cpu HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1} VLLM_CPU_OMP_THREADS_BIND=${VLLM_CPU_OMP_THREADS_BIND:-nobind}
export OMP_NUM_THREADS=1 PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"
serve=("$V/bin/vllm" serve)
[ -z "${FRONT_ENDS:-}" ] || serve=("$V/bin/python" "$HERE/front_ends.py")
script=(--logits-processors tinyscript:ScriptLogitsProcessor)
[ -z "${UNSCRIPTED:-}" ] || script=()
exec "${serve[@]}" "$MODEL" --host 127.0.0.1 --port "$PORT" --served-model-name tiny tiny-alias \
  --max-model-len 2048 --max-num-seqs 8 --dtype bfloat16 --enforce-eager --no-async-scheduling \
  ${script[@]+"${script[@]}"} "$@"
