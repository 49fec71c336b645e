#!/bin/bash
export VLLM_HOST_IP=192.168.1.12 NCCL_SOCKET_IFNAME=bond0
vllm serve /models/DeepSeek-V4-Flash --port 8000 --tensor-parallel-size 2 --max-model-len 131072 \
  --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29501 --headless
