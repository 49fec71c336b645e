"""One client request from its bytes to its answer. Read handler.py first."""
