#!/bin/bash
IMAGE="${1:-${VLLM_IMAGE:-vllm/vllm-openai:v0.23.0}}"
MODEL=${MODEL:?}
docker run -d --gpus all --network host $DOCKER_OPTS "$IMAGE" --model "$MODEL" --tensor-parallel-size ${TP:-1} $@
