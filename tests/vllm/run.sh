#!/usr/bin/env bash
# The tests against a real vLLM on the CPU. usage: tests/vllm/run.sh [pytest arguments]
# VLLM_VENV: the environment with vLLM (default .venv-vllm in the repository; installed when it is not there).
# PYTEST_PYTHON: the interpreter with the gateway and pytest (default .venv/bin/python).
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
cd "$HERE/../.."
export VLLM_VENV=${VLLM_VENV:-$PWD/.venv-vllm}
if ! "$VLLM_VENV/bin/python" -c 'from importlib.metadata import version; version("vllm")' 2>/dev/null; then
  echo "installing vLLM into $VLLM_VENV (some 2.5 GB, a few minutes)"
  "$HERE/install.sh" "$VLLM_VENV"
fi
. "$HERE/../lane.sh"
run_lane tests/vllm "$@"
