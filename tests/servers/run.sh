#!/usr/bin/env bash
# The tests against real servers other than vLLM, on the CPU. usage: tests/servers/run.sh [pytest arguments]
# ENGINES: the folder with the servers (default .venv-engines in the repository; what is missing is installed).
# PYTEST_PYTHON: the interpreter with the gateway and pytest (default .venv/bin/python).
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
cd "$HERE/../.."
export ENGINES=${ENGINES:-$PWD/.venv-engines}
"$HERE/install.sh" "$ENGINES"
. "$HERE/../lane.sh"
run_lane tests/servers "$@"
