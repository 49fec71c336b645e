#!/bin/bash
# The head of DeepSeek-V4-Flash on two Sparks.
export VLLM_HOST_IP=192.168.1.11
export NCCL_SOCKET_IFNAME=bond0 GLOO_SOCKET_IFNAME=bond0
export NCCL_IB_HCA=rocep1s0f0,rocep1s0f1
export NCCL_IB_DISABLE=0
export NCCL_IGNORE_CPU_AFFINITY=1
export TORCH_CUDA_ARCH_LIST=12.1a
export VLLM_ALLOW_LONG_MAX_MODEL_LEN=1
export VLLM_TRITON_MLA_SPARSE=1
export VLLM_USE_FLASHINFER_SAMPLER=1
export OMP_NUM_THREADS=8

vllm serve /models/DeepSeek-V4-Flash --served-model-name deepseek-v4-flash \
  --host 0.0.0.0 --port 8000 --trust-remote-code --load-format safetensors \
  --tensor-parallel-size 2 --pipeline-parallel-size 1 \
  --kv-cache-dtype fp8 --block-size 256 --enable-prefix-caching --enable-chunked-prefill \
  --max-model-len 131072 --max-num-seqs 8 --max-num-batched-tokens 16384 \
  --gpu-memory-utilization 0.90 --disable-custom-all-reduce --enable-expert-parallel \
  --compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}' \
  --speculative-config '{"method":"deepseek_mtp","num_speculative_tokens":2}' \
  --tokenizer-mode deepseek_v4 --enable-auto-tool-choice --tool-call-parser deepseek_v4 \
  --reasoning-parser deepseek_v4 --default-chat-template-kwargs '{"thinking":true}' \
  --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29501
