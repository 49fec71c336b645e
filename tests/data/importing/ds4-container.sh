#!/bin/bash
# The container of the two-node engine is started empty, the engine inside of it.
sudo sync && sudo bash -c 'echo 3 > /proc/sys/vm/drop_caches'
docker run -d --name vllm_ds4 --gpus all --ipc host --net host --privileged \
  -v /home/user/models:/models -v ~/.cache/vllm:/cache/vllm \
  ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest sleep infinity
docker exec -d vllm_ds4 bash -c "bash /workspace/vllm-head.sh > /tmp/vllm.log 2>&1"
