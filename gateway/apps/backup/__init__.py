"""A backup of `server.data` in one file, made while the gateway runs."""
