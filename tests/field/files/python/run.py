import subprocess

subprocess.run("docker run vllm/vllm-openai:v1 m", shell=True)
