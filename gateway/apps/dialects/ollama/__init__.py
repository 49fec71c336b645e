"""Ollama's API, for programs that speak nothing else: editors, Home Assistant, Obsidian, its Python and JavaScript
clients.

Translated at the edge like Anthropic's: `/api/chat` and `/api/generate` become chats (a raw prompt a completion),
`/api/embed` embeddings, and any backend serves them. What concerns Ollama's own models (pull, create, delete) is
refused.
"""
