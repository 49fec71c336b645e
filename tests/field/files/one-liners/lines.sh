$ uv run vllm serve A/uv --port 8001
tmux new-session -d -s vllm 'vllm serve A/tmux --port 8002'
screen -dmS vllm bash -c 'vllm serve A/screen --port 8003'
systemd-run --user --scope -p MemoryMax=90% python3 -m vllm.entrypoints.openai.api_server --model A/scope --port 8004
until vllm serve A/until --port 8005; do sleep 5; done
conda run -n vllm vllm serve A/conda --port 8006
vllm serve --config brain.yaml
