#!/usr/bin/env bash
# `make test-pythons`: every test under each supported Python that can be had here, in an environment of its own (.venv-pyX.Y). What
# cannot be had is printed as a skip. PYTHONS="3.12 3.13" tries only these; further arguments are pytest's.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$PWD/${BIN:-.venv/bin}/uv
# found VERSION: an interpreter that uv finds, or one of pyenv's
found() {
  local one
  "$uv" python find --no-project "$1" 2>/dev/null && return
  for one in "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    [ -x "$one" ] && echo "$one" && return
  done
  return 1
}
failed=
for version in ${PYTHONS:-3.11 3.12 3.13 3.14}; do
  said=$(found "$version" >/dev/null || timeout 300 "$uv" python install "$version" 2>&1) || true
  if ! python=$(found "$version"); then
    echo "skipped: Python $version cannot be had here: $(grep -v '^ *$' <<<"$said" | tail -n 1 | sed 's/^ *//')"
    continue
  fi
  environment=.venv-py$version
  "$uv" venv --quiet --clear --python "$python" "$environment"
  "$uv" pip install --quiet --python "$environment/bin/python" --require-hashes -r requirements-dev.lock
  "$uv" pip install --quiet --python "$environment/bin/python" --no-deps --no-build-isolation -e .
  echo "Python $("$environment/bin/python" -V | cut -d' ' -f2)"
  "$environment/bin/python" -m pytest -q -n 3 --dist loadfile "$@" || failed="$failed $version"
done
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
