#!/bin/bash
docker run -d --name dev --network host --gpus all -e X=1 example/vllm-node:1 sleep infinity
pkill -f "vllm serve" || true
docker exec -it dev bash -c "
export VLLM_FASTSAFETENSORS_NOGDS=1
vllm serve openai/gpt-oss-120b \\
    --port 8010 --max-num-seqs 2
"
