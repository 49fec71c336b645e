"""OpenAI's Responses API for clients that speak it (the openai SDK, Codex, Hermes and OpenClaw in that mode).

Translated at the edge, for every backend: the body becomes a chat request, and the chat answer becomes a response,
event by event. A backend that serves responses itself is asked as a chat too, so that there is one way through with the
same routing, checks and mending. Nothing is stored.
"""
