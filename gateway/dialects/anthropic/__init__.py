"""Anthropic's Messages API for clients that speak it (Claude Code, the anthropic SDK).

Translated at the edge: the body becomes a chat request, and the chat answer becomes a message, event by event. All that
lies between (routing, tools, thinking, failover, checks) is the one way through for both, and any backend that serves
chats serves messages.
"""
