"""The commands of this app: name → summary, and where the click command is below this package."""

COMMANDS = {
    "bench": ("Measure how fast an alias or a server is, and what the gateway adds.", "command:command"),
}
