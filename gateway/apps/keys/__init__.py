"""The keys of clients: `gateway client` adds, rotates and removes them in routes.yaml."""

COMMANDS = {"client": ("Add, rotate and remove the keys of clients in routes.yaml.", "command:command")}
