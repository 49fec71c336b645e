"""The commands of this app: name → summary, and where the click command is below this package."""

COMMANDS = {
    "backup": ("Write `server.data` into one file, also while the gateway runs.", "archive:command"),
}
