"""OpenAI's Responses API for clients that speak it (the openai SDK, Codex, Hermes and OpenClaw in that mode).

Translated at the edge: the body becomes a chat request, and the chat answer becomes a response, event by event. A
server that has this API itself gets the body as it came; its answer passes through the checks as a chat's, and is sent
as it is unless they changed it. Responses are kept where the operator wants it.
"""
