#!/bin/bash
boot() {
  local n=$1
  vllm serve Qwen/Qwen3-4B --port 8000 >$OUT/serve-$n.log --max-num-seqs 4 2>&1 &
}
boot 1
