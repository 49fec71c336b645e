"""OpenAI's API, which vLLM and many other servers implement."""
