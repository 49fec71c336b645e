#!/usr/bin/env bash
# llama-server, mlx_lm.server and transformers serve for the CPU, and a tiny model that knows some answers by heart, in
# one folder (1.7 GB). usage: install.sh FOLDER      about 10 minutes on 2 cores, once; does only what is missing
# PYTHON: the interpreter of the environments (default python3.11). pip's own settings say where packages come from;
# where `torch` is a CUDA build (several GB), point them at an index with CPU builds first: both work.
# llama-server is built from the sources of llama.cpp that the source package of llama-cpp-python carries.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?usage: install.sh FOLDER}"
cd "$1"
PYTHON=${PYTHON:-python3.11}
LLAMA_CPP=src/llama_cpp_python-0.3.36/vendor/llama.cpp
HF_NAME=mlx-community/Qwen3-0.6B-4bit   # what the taught model is called in the cache of Hugging Face

environment() { # NAME COMMAND PACKAGE...
  local name=$1 command=$2
  shift 2
  [ ! -x "$name/bin/$command" ] || return 0
  echo "installing $command"
  "$PYTHON" -m venv "$name"
  nice "$name/bin/pip" install -q "$@"
}

environment venv-mlx mlx_lm.server "mlx[cpu]==0.32.4" mlx-lm==0.32.2
environment venv-tools transformers torch==2.13.0 "transformers[serving]==5.23.0" tokenizers==0.23.3 safetensors==0.8.0 \
  gguf==0.19.0 sentencepiece==0.2.3

if [ ! -d "$LLAMA_CPP" ]; then
  mkdir -p sdist src
  nice venv-tools/bin/pip download -q --no-deps --no-binary :all: -d sdist llama-cpp-python==0.3.36
  tar xzf sdist/llama_cpp_python-0.3.36.tar.gz -C src
fi
if [ ! -x build/bin/llama-server ]; then
  echo "building llama-server (some 6 minutes on 2 cores)"
  command -v cmake > /dev/null || venv-tools/bin/pip install -q cmake==4.4.4
  PATH=$PATH:$PWD/venv-tools/bin
  nice cmake -S "$LLAMA_CPP" -B build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_OPENMP=OFF \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_NUMBER=1 -DLLAMA_BUILD_COMMIT=0c1e57098 > build.log
  nice cmake --build build --target llama-server -j2 >> build.log
fi

# Made aside and moved, so that what is there is whole.
if [ ! -d taught ]; then
  [ -d tiny ] || { venv-tools/bin/python "$HERE/../vllm/make_tiny_model.py" tiny.new && mv -T tiny.new tiny; }
  echo "teaching the tiny model (some 2 minutes)"
  nice venv-tools/bin/python "$HERE/teach.py" tiny taught.new "$LLAMA_CPP/models/templates/Qwen-Qwen3-0.6B.jinja"
  mv -T taught.new taught
fi
if [ ! -f taught.gguf ]; then
  venv-tools/bin/python "$HERE/to_gguf.py" "$LLAMA_CPP" taught taught.new.gguf
  mv taught.new.gguf taught.gguf
fi
[ -d hf ] || { venv-tools/bin/python "$HERE/make_hf_cache.py" taught hf.new "$HF_NAME" && mv -T hf.new hf; }
