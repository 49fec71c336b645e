"""The commands of this app: name → summary, and where the click command is below this package."""

COMMANDS = {"client": ("Add, rotate and remove the keys of clients in routes.yaml.", "command:command")}
