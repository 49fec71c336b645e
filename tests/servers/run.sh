#!/usr/bin/env bash
# The tests against real servers other than vLLM, on the CPU. usage: tests/servers/run.sh [pytest arguments]
# ENGINES: the folder with the servers (default .venv-engines in the repository; what is missing is installed).
# OLLAMA_GIT: a clone of ollama/ollama, of which an Ollama is built there; without it those tests are skipped.
# PYTEST_PYTHON: the interpreter with the gateway and pytest (default .venv/bin/python).
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
cd "$HERE/../.."
export ENGINES=${ENGINES:-$PWD/.venv-engines}
"$HERE/install.sh" "$ENGINES"
"$HERE/ollama/install.sh" "$ENGINES/ollama" "$ENGINES/taught.gguf"
. "$HERE/../lane.sh"
run_lane tests/servers "$@"
