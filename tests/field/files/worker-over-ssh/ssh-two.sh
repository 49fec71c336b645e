#!/bin/bash
HEAD=192.168.100.10
WORKER=192.168.100.11
for host in $HEAD $WORKER; do
  ssh $host "docker pull vllm/vllm-openai:v0.23.0"
done
ssh $WORKER "docker run -d --network host vllm/vllm-openai:v0.23.0 --model M --headless --nnodes 2 --node-rank 1 --master-addr $HEAD"
docker run -d --name head --network host --gpus all vllm/vllm-openai:v0.23.0 --model deepseek-ai/DeepSeek-V4-Flash-0731 --tensor-parallel-size 2 --nnodes 2 --node-rank 0 --master-addr $HEAD
