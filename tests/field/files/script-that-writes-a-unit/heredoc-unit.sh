#!/bin/bash
sudo tee /etc/systemd/system/vllm.service > /dev/null <<EOF
[Service]
ExecStart=/usr/bin/docker run --rm vllm/vllm-openai:v0.23.0 --model X
EOF
sudo systemctl daemon-reload
sudo systemctl enable --now vllm
