"""Anthropic's Messages API for clients that speak it (Claude Code, the anthropic SDK).

Translated at the edge: the body becomes a chat request, and the chat answer becomes a message, event by event.
Everything in between (routing, tools, thinking, failover, checks) is the same code for both, and any backend that
serves chats serves messages.
"""
