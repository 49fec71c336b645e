#!/usr/bin/env bash
# The quick starts with the real agents and SDKs, in front of `gateway demo`. usage: tests/clients/run.sh [pytest arguments]
# CLIENTS: where the agents are, or are to be installed (default .venv-clients in the repository; some 2 GB).
# Needs npm, and tmux for Claude Code in a terminal. The versions are those that docs/connect.md names, and for the SDKs
# those of requirements-*.txt.
set -euo pipefail
cd "$(dirname "$0")/../.."
export CLIENTS=${CLIENTS:-$PWD/.venv-clients}
version() { grep -oE "$1[@=]+[0-9.]+[0-9]" docs/connect.md | head -n 1 | grep -oE "[0-9.]+$"; }

if ! "$CLIENTS/hermes/bin/python" -c "import anthropic" 2>/dev/null; then
  "${PYTHON:-python3}" -m venv "$CLIENTS/hermes"
  "$CLIENTS/hermes/bin/pip" install --quiet "hermes-agent[anthropic]==$(version hermes-agent)"
fi
for sdks in sdks litellm agents; do    # apart: litellm chooses its openai itself
  if ! cmp -s "tests/clients/requirements-$sdks.txt" "$CLIENTS/$sdks/requirements.txt"; then
    "${PYTHON:-python3}" -m venv "$CLIENTS/$sdks"
    "$CLIENTS/$sdks/bin/pip" install --quiet -r "tests/clients/requirements-$sdks.txt"
    cp "tests/clients/requirements-$sdks.txt" "$CLIENTS/$sdks/requirements.txt"
  fi
done
if [ ! -x "$CLIENTS/node_modules/.bin/openclaw" ]; then
  mkdir -p "$CLIENTS"
  npm install --silent --prefix "$CLIENTS" node@24
  PATH="$CLIENTS/node_modules/.bin:$PATH" npm install --silent --prefix "$CLIENTS" "openclaw@$(version openclaw)"
fi
if [ ! -x "$CLIENTS/node_modules/.bin/claude" ]; then
  npm install --silent --prefix "$CLIENTS" "@anthropic-ai/claude-code@$(version claude-code)"
fi
if [ ! -x "$CLIENTS/node_modules/.bin/qwen" ]; then
  npm install --silent --prefix "$CLIENTS" "@openai/codex@$(version codex)" "opencode-ai@$(version opencode-ai)" \
    "@qwen-code/qwen-code@0.15.10" "@mariozechner/pi-coding-agent@0.73.1" ai@6.0.326 @ai-sdk/openai@3.0.141 \
    @ai-sdk/openai-compatible@2.0.92 @ai-sdk/anthropic@3.0.140 openai@6.49.0 zod@4.6.7
fi
# Open WebUI without its own models for speech and documents, which are some 3 GB of packages and are not asked here.
webui=$CLIENTS/openwebui
if [ ! -f "$webui/needs.txt" ]; then
  "${PYTHON:-python3}" -m venv "$webui"
  "$webui/bin/pip" install --quiet --no-deps "open-webui==$(version open-webui)"
  "$webui/bin/python" - > "$webui/needs.txt.new" <<'END'
import re
from importlib.metadata import requires
own = "accelerate|einops|faster-whisper|opencv-python-headless|rapidocr|sentence-transformers|sentencepiece|transformers"
print(*(need for need in requires("open-webui") if ";" not in need and not re.match(f"({own})==", need)), sep="\n")
END
  "$webui/bin/pip" install --quiet -r "$webui/needs.txt.new"
  mv "$webui/needs.txt.new" "$webui/needs.txt"
fi

paths=                                 # without one pytest would run every test of the repository
for argument; do [ -e "${argument%%::*}" ] && paths=given; done
[ -n "$paths" ] || set -- tests/clients "$@"
exec "${PYTEST_PYTHON:-.venv/bin/python}" -m pytest -p no:cacheprovider -q -rs -o norecursedirs=.hypothesis "$@"
