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

VLLM_PIDS=$(mktemp -d)                 # a note per server under way, and the servers' logs
export VLLM_PIDS
pytest=
stop_everything() {
  local status=$? note
  [ -n "$pytest" ] && kill -KILL "$pytest" 2>/dev/null
  for note in "$VLLM_PIDS"/*.pid; do
    [ -e "$note" ] && kill -KILL -- "-$(cat "$note")" 2>/dev/null
  done
  if [ "$status" -eq 0 ]; then rm -rf "$VLLM_PIDS"; else echo "the servers' logs are in $VLLM_PIDS"; fi
  exit "$status"
}
trap stop_everything EXIT
trap 'exit 130' INT TERM

paths=                                 # without one pytest would run every test of the repository
for argument; do [ -e "${argument%%::*}" ] && paths=given; done
[ -n "$paths" ] || set -- tests/vllm "$@"
# In the background, so that a signal to this script is acted on at once and not when pytest ends.
"${PYTEST_PYTHON:-.venv/bin/python}" -m pytest -p no:cacheprovider -q -o norecursedirs=.hypothesis "$@" &
pytest=$!
status=0
wait "$pytest" || status=$?
pytest=
exit "$status"
