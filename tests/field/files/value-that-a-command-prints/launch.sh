#!/bin/bash
IMG=example/ds4:1
GID=$(bash $HOME/gid_index.sh rocep1s0f1 1 10.0.0.1)
D="-d --name ds4 --network host"
docker run $D -e NCCL_IB_GID_INDEX=$GID --entrypoint /usr/local/bin/ds4-vllm-entrypoint $IMG serve /models/ds4 --port $1
