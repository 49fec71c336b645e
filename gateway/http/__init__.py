"""The server's side of HTTP: listener, connections, and the ASGI application."""
