#!/usr/bin/env bash
# `make release`: the files of a release in dist/, tested as people will install them. Uploads nothing.
# The arguments are words of what to do: all of `build try image wheels sbom`, in this order, without any.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=$PWD/${VENV:-.venv}/bin
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH # the same sources give the same bytes
version=$("$bin/python" -c 'import gateway; print(gateway.__version__)')
wheel=$PWD/dist/spark_gateway-$version-py3-none-any.whl
sdist=$PWD/dist/spark_gateway-$version.tar.gz

say() { echo "release: $*"; }

build() {
  rm -rf dist
  "$bin/hatchling" build --directory dist > "$scratch/build.log" 2>&1 || { cat "$scratch/build.log"; return 1; }
  [[ -f $wheel && -f $sdist ]]
}

# answers COMMAND...: `COMMAND demo` serves, and a chat is answered.
answers() {
  local port pid ok=
  port=$("$bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  (cd "$scratch" && exec "$@" demo --port "$port" --speedup 20 > "$scratch/demo.log" 2>&1) &
  pid=$!
  for _ in $(seq 600); do
    if curl -sf --noproxy '*' "http://127.0.0.1:$port/v1/chat/completions" -H 'content-type: application/json' \
      -d '{"model": "spark-qwen36", "messages": [{"role": "user", "content": "What is 12*17?"}]}' 2>/dev/null | grep -q 204; then
      ok=1
      break
    fi
    kill -0 $pid 2>/dev/null || break
    sleep 0.2
  done
  pkill -INT -P $pid 2>/dev/null || true
  kill -INT $pid 2>/dev/null || true
  wait $pid 2>/dev/null || true
  [[ -n $ok ]] || { cat "$scratch/demo.log"; say "does not answer: $*"; return 1; }
  say "answers: ${*//$PWD\//} demo"
}

try() {
  # Beside what the lock has, so that what is tried is what was tested.
  sed -E 's/ *\\$//; /^ *--hash/d' requirements.lock > "$scratch/pins.txt"
  local form
  for form in "$wheel" "$sdist"; do
    rm -rf "$scratch/venv"
    "$bin/python" -m venv "$scratch/venv"
    "$scratch/venv/bin/pip" install --quiet --disable-pip-version-check --constraint "$scratch/pins.txt" "$form"
    answers "$scratch/venv/bin/gateway"
  done
  export UV_TOOL_DIR=$scratch/tools UV_TOOL_BIN_DIR=$scratch/tool-bin PIPX_HOME=$scratch/pipx
  "$bin/uv" tool install --quiet --constraints "$scratch/pins.txt" "$wheel"
  answers "$scratch/tool-bin/gateway"
  answers "$scratch/tool-bin/spark-gateway"
  answers "$bin/uvx" --quiet --from "$wheel" spark-gateway
  answers "$bin/uvx" --quiet pipx@1.8.0 run --spec "$wheel" spark-gateway
}

image() {
  if ! docker info > /dev/null 2>&1; then
    say "image: not built: no docker daemon here"
    return
  fi
  local build=(-f deploy/Dockerfile -t "spark-gateway:$version" ${PYTHON_IMAGE:+--build-arg "PYTHON_IMAGE=$PYTHON_IMAGE"})
  if [[ -z ${PYTHON_IMAGE:-} ]] && docker buildx ls 2>/dev/null | grep -q arm64; then
    docker buildx build --platform linux/amd64,linux/arm64 "${build[@]}" .
  fi
  docker build ${DOCKER_BUILD_NETWORK:+--network "$DOCKER_BUILD_NETWORK"} "${build[@]}" . > "$scratch/image.log" 2>&1 || { tail -20 "$scratch/image.log"; return 1; }
  answers docker run --rm --network host "spark-gateway:$version"
}

# Every package of the lock is there as a wheel for aarch64, as a Spark has it: resolved with its hash, not installed.
wheels() {
  local python
  for python in 3.11 3.12 3.13 3.14; do
    "$bin/python" -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed --no-deps --only-binary :all: \
      --target "$scratch/target" --python-version "$python" --implementation cp --require-hashes -r requirements.lock \
      --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64
    say "wheels: every package has one for aarch64 with Python $python"
  done
}

sbom() {
  "$bin/python" -m venv "$scratch/locked"
  "$scratch/locked/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
  "$bin/python" deploy/release/sbom.py requirements.lock "$scratch/locked/bin/python" > "dist/spark-gateway-$version.cdx.json"
  (cd dist && sha256sum -- spark* > SHA256SUMS && cat SHA256SUMS)
}

(($#)) || set -- build try image wheels sbom
for word in "$@"; do "$word"; done
