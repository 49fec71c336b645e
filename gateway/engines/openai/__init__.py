"""OpenAI's API, as vLLM and many other servers speak it."""
