"""One package or module per kind of server behind the gateway."""
